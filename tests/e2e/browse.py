"""The browser as a user drives it: recorded keys in, a screen out; and live, on a pseudo-terminal."""
import fcntl, json, os, pty, select, signal, struct, subprocess, termios, time
import lib
from lib import check

ROWS, COLUMNS = 24, 80


def tapes(p):
    """Two recordings of the same rounds, made once: by the engine and by the float64 reference."""
    if not os.path.exists('b.tape'):
        p.ok('synth', 'model', '--config', 'tiny', '--seed', 3)
        p.ok('script', 's.safetensors', '--model', 'model', '--rounds', 5, '--slots', 2, '--seed', 4)
        p.ok('record', 'model', '--script', 's.safetensors', '-o', 'a.tape', '--arm', 'native-packed', '--level', 'deep')
        p.ok('record', 'model', '--script', 's.safetensors', '-o', 'b.tape', '--arm', 'mirror64', '--level', 'deep')
    return 'a.tape', 'b.tape'


def screen(p, keys, *args):
    with open('keys', 'w') as f:
        f.write(keys)
    return p.ok('browse', *args, '--keys', 'keys').stdout


def recorded_keys_print_the_final_screen(p):
    a, b = tapes(p)
    text = screen(p, '# nothing pressed\n', a, b)
    lines = text.split('\n')
    fits = len(lines) == ROWS + 1 and all(len(x) <= COLUMNS and x == x.rstrip() for x in lines)
    check(fits, f'not 80x24, trimmed:\n{text}')
    check('Rounds' in lines[0] and '5 rounds compared' in lines[0], text)
    check('native-packed' in text and 'mirror64' in text, text)
    wide = screen(p, 'o Enter', a, b, '--size', '120x40').split('\n')
    check(len(wide) == 41 and max(map(len, wide)) > COLUMNS, 'no wider at 120x40')
    check(screen(p, 'o Enter\n h', a, b) == screen(p, 'o\nEnter h', a, b), 'the same keys show two screens')


def the_first_origin_is_the_one_that_diff_names(p):
    a, b = tapes(p)
    text = screen(p, 'o', a, b)
    name = next(x.split()[2] for x in text.split('\n') if x.startswith('> o '))
    report = p.ok('diff', a, b, exits=(1,)).stdout
    check(name in report, f'{name} is not in the report:\n{report}')
    check('origin' in screen(p, 'o Enter', a, b), 'the value screen does not say origin')


def a_reference_comes_back_to_its_element(p):
    a, b = tapes(p)
    ref = screen(p, 'o Enter y', a, b).rstrip('\n').split('\n')[-1]
    check(ref.startswith('a.tape:'), ref)
    check(ref[ref.index('['):] in screen(p, '', a, b, '--at', ref), f'{ref} is not where --at goes')
    check(p.ok('show', ref).stdout, f'show does not take {ref}')


def what_diff_says_of_another_rank_count_can_be_shown(p):
    """The line that diff ends with, and every difference of its report, whether cut, partial or replicated."""
    a, _ = tapes(p)
    p.ok('record', 'model', '--script', 's.safetensors', '-o', 'two.tape', '--arm', 'native-packed', '--acc', 'f64',
         '--tp', 2, '--level', 'deep')
    for x, y in ((a, 'two.tape'), ('two.tape', a)):
        line = next(t for t in p.ok('diff', x, y, exits=(1,)).stdout.split('\n') if t.startswith('look closer:'))
        check('0x' in p.ok('show', line.split("'")[1]).stdout, line)
    places, cut = set(), json.loads(p.ok('show', 'two.tape:0/-/s0.ffn.shared@r1', '--json').stdout)
    for line in map(json.loads, p.ok('diff', a, 'two.tape', '--json', exits=(1,)).stdout.splitlines()):
        if line['type'] != 'value' or 'metrics' not in line:
            continue
        worst, index = line['metrics']['worst'], []
        for n in reversed(line['b']['shape']):
            index.insert(0, worst % n)
            worst //= n
        slot = '-' if line['slot'] is None else line['slot']
        ref = f'two.tape:{line["round"]}/{slot}/{line["value"]}{index}'
        got = json.loads(p.ok('show', ref, '--json').stdout)
        check(got['element']['value'] == line['metrics']['b_worst'], f'{ref} is {got["element"]}, not {line["metrics"]}')
        check(got['shape'] == line['b']['shape'] and got['ranks'] == 2, f'{ref}: {got}')
        places.add(got['place'])
        if len(places) == 3:
            break
    check('partial' in places and len(places) >= 2, f'only {places} differ')
    check('joined' not in cut and cut['ref'].endswith('@r1'), f'one rank alone: {cut}')


def one_tape_alone_and_a_replay_are_browsed(p):
    a, _ = tapes(p)
    check('main_x' in screen(p, 'Enter', a), 'no program of one tape')
    text = screen(p, '', a, '--against', 'mirror', '--model', 'model', '--quiet')
    check('mirror' in text and '5 rounds compared' in text, text)


def ascii_screens_are_ascii(p):
    a, b = tapes(p)
    screen(p, 'o Enter', a, b, '--ascii').encode('ascii')
    p.env['LC_ALL'] = 'C'
    try:
        screen(p, 'o Enter', a, b).encode('ascii')
    finally:
        p.env['LC_ALL'] = 'C.UTF-8'


def what_is_wrong_is_named(p):
    a, b = tapes(p)
    with open('bad', 'w') as f:
        f.write('Enter\nDwon\n')
    p.refused(3, ['bad', 'line 2', 'Dwon'], 'browse', a, '--keys', 'bad')
    p.refused(3, 'missing.keys', 'browse', a, '--keys', 'missing.keys')
    p.refused(2, 'terminal', 'browse', a)
    p.refused(2, '0x0', 'browse', a, '--keys', 'keys', '--size', '0x0')
    p.refused(2, '--model', 'browse', a, '--keys', 'keys', '--against', 'mirror')
    p.refused(2, '--against', 'browse', a, b, '--keys', 'keys', '--against', 'mirror', '--model', 'model')
    p.refused(2, 'nonsense', 'browse', a, '--keys', 'keys', '--at', 'nonsense')
    p.refused(3, 'round 77', 'browse', a, '--keys', 'keys', '--at', '77')
    p.refused(3, 'keys', 'browse', 'keys', '--keys', 'keys')


# ---- on a terminal ----

class Live:
    """browse on a pseudo-terminal of its own; shell: a script that runs it, as "$@"."""

    def __init__(self, p, *args, shell=None):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack('HHHH', ROWS, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        env = dict(p.env, TERM='xterm-256color')
        argv = (['sh', '-c', shell, 'sh'] if shell else []) + [p.path, 'browse', *args]
        self.process = subprocess.Popen(argv, stdin=self.slave, stdout=self.slave, stderr=subprocess.PIPE, env=env,
                                        preexec_fn=self.own_session)
        self.out = b''
        self.at = 0  # what lies before it has been waited for, or came before the last key

    def own_session(self):
        os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def read(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and select.select([self.master], [], [], left)[0]:
            self.out += os.read(self.master, 65536)

    def wait_for(self, text, seconds=20):
        end = time.monotonic() + seconds
        while (found := self.out.find(text.encode(), self.at)) < 0:
            check(time.monotonic() < end and self.process.poll() is None,
                  f'"{text}" never came (exit {self.process.poll()}): {self.out[self.at:][-400:]!r}')
            self.read(0.05)
        self.at = found + len(text.encode())

    def press(self, keys):
        self.at = len(self.out)
        os.write(self.master, keys.encode())

    def finish(self, status):
        end = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        self.read(0.05)
        if self.process.poll() is None:
            self.process.kill()
        got = self.process.wait()
        errors = self.process.stderr.read().decode()
        self.process.stderr.close()
        after = termios.tcgetattr(self.slave)
        os.close(self.master)
        os.close(self.slave)
        check(got == status, f'exit {got}, wanted {status}: {errors}')
        check(after == self.before, f'terminal attributes {after}, were {self.before}')
        check(b'\x1b[?1049l' in self.out, 'the main screen was not put back')
        check(self.out.rfind(b'\x1b[?1049l') > self.out.rfind(b'\x1b[?1049h'), 'the browser screen came after the main one')


def live_keys_work_and_quitting_restores_the_terminal(p):
    live = Live(p, *tapes(p))
    live.wait_for('Rounds')
    live.wait_for('5 rounds compared')
    live.press('o')
    live.wait_for('Program')
    live.press('\r')
    live.wait_for('Value')
    check(termios.tcgetattr(live.slave) != live.before, 'the terminal was never in another mode')
    live.press('Q')
    live.finish(0)


def a_signal_restores_the_terminal(p):
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGABRT):
        live = Live(p, *tapes(p))
        live.wait_for('Rounds')
        live.process.send_signal(number)
        live.finish(-number)
    live = Live(p, *tapes(p))
    live.wait_for('Rounds')
    live.press('\x03')  # ^C
    live.finish(-signal.SIGINT)


def stopping_and_coming_back_keeps_the_screen(p):
    if os.path.exists('go'):
        os.remove('go')
    live = Live(p, *tapes(p), shell='set -m; "$@"; echo stopped-$?; while [ ! -e go ]; do sleep 0.1; done; fg >/dev/null')
    live.wait_for('5 rounds compared')
    live.press('\x1a')  # ^Z
    live.wait_for('stopped-148')
    check(termios.tcgetattr(live.slave) == live.before, 'stopped, and the terminal is not as it was')
    open('go', 'w').close()
    live.wait_for('Rounds')
    live.press('o')
    live.wait_for('Program')
    live.press('Q')
    live.finish(0)


def a_resized_terminal_is_filled(p):
    live = Live(p, *tapes(p))
    live.wait_for('5 rounds compared')
    live.at = len(live.out)
    fcntl.ioctl(live.slave, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 130, 0, 0))
    live.wait_for('arm')  # a column that 80 columns have no room for
    live.press('Q')
    live.finish(0)


def keys_answer_while_rounds_are_compared(p):
    """From a key to the first byte of the answer."""
    live = Live(p, *tapes(p))
    live.wait_for('Rounds')
    worst = 0
    for key in ['\x1b[B', '\x1bOB', '\x1b[F', '2', '1', 'o', '\r', '\x1b[F', 'w', 'h', '\t', 'q', '\x1b']:
        live.read(0.15)
        start, n = time.monotonic(), len(live.out)
        live.press(key)
        while len(live.out) == n:
            check(live.process.poll() is None and time.monotonic() < start + 5, f'{key!r} was not answered')
            live.read(0.002)
        worst = max(worst, time.monotonic() - start)
    print(f'      slowest answer {worst * 1000:.1f} ms')
    live.press('Q')
    live.finish(0)


def terminals():
    """Whether this machine gives out pseudo-terminals; a bare chroot does not."""
    try:
        for end in pty.openpty():
            os.close(end)
        return True
    except OSError as why:
        print(f'skip  the live tests: {why}')
        return False


TEXT = [recorded_keys_print_the_final_screen, the_first_origin_is_the_one_that_diff_names,
        a_reference_comes_back_to_its_element, what_diff_says_of_another_rank_count_can_be_shown,
        one_tape_alone_and_a_replay_are_browsed, ascii_screens_are_ascii, what_is_wrong_is_named]
LIVE = [live_keys_work_and_quitting_restores_the_terminal, a_signal_restores_the_terminal,
        stopping_and_coming_back_keeps_the_screen, a_resized_terminal_is_filled, keys_answer_while_rounds_are_compared]
lib.main(TEXT + (LIVE if terminals() else []))
