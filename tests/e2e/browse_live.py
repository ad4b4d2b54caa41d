"""The browser on a terminal: keys, signals, sizes, a growing tape, the mouse; and as a person meets it, in tmux."""
import base64, fcntl, os, shutil, signal, struct, subprocess, sys, termios, time
import numpy as np
import lib
from browse_help import Live, tapes, terminals
from lib import check


def live_keys_work_and_quitting_restores_the_terminal(p):
    tty = Live(p, *tapes(p))
    tty.wait_for('Rounds')
    tty.wait_for('5 rounds compared')
    tty.press('o')
    tty.wait_for('Program')
    tty.press('\r')
    tty.wait_for('Value')
    check(termios.tcgetattr(tty.slave) != tty.before, 'the terminal was never in another mode')
    tty.press('y')
    tty.wait_for('bad.tape:2/-/s1.attn_out[')
    tty.read(0.3)
    copied = base64.b64decode(tty.out.split(b'\x1b]52;c;')[1].split(b'\a')[0])
    check(copied.startswith(b'bad.tape:2/-/s1.attn_out['), f'the clipboard was given {copied}')
    tty.press('Q')
    tty.finish(0)


def judging_a_round_says_so_and_ends(p):
    tty = Live(p, *tapes(p), '--model', 'model')
    tty.wait_for('5 rounds compared')
    tty.press('c')
    tty.wait_for('judging round 0')
    tty.wait_for('PASS|PASS')
    tty.press('o')
    tty.wait_for('Program')
    tty.press('c')
    tty.wait_for('judging round 2')
    tty.wait_for('row swap')
    tty.press('Q')
    tty.finish(0)


def a_signal_restores_the_terminal(p):
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV, signal.SIGUSR2):
        tty = Live(p, *tapes(p))
        tty.wait_for('Rounds')
        tty.process.send_signal(number)
        tty.finish(-number)
    tty = Live(p, *tapes(p))
    tty.wait_for('Rounds')
    tty.press('\x03')  # ^C
    tty.finish(-signal.SIGINT)


def a_terminal_without_a_cursor_is_refused(p):
    tty = Live(p, *tapes(p), shell='TERM=dumb "$@"; echo left-$?; exec "$@"')
    tty.wait_for('left-5')
    tty.wait_for('Rounds')
    tty.press('Q')
    tty.finish(0)


def stopping_and_coming_back_keeps_the_screen(p):
    if os.path.exists('go'):
        os.remove('go')
    tty = Live(p, *tapes(p), shell='set -m; "$@"; echo stopped-$?; while [ ! -e go ]; do sleep 0.1; done; fg >/dev/null')
    tty.wait_for('5 rounds compared')
    tty.press('\x1a')  # ^Z
    tty.wait_for('stopped-148')
    check(termios.tcgetattr(tty.slave) == tty.before, 'stopped, and the terminal is not as it was')
    fcntl.ioctl(tty.slave, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 130, 0, 0))
    open('go', 'w').close()
    tty.wait_for('arm')  # a column that 80 columns have no room for
    tty.press('o')
    tty.wait_for('Program')
    tty.press('Q')
    tty.finish(0)


def a_stop_that_comes_while_the_screen_is_drawn_is_not_lost(p):
    go = 'while [ ! -e go ]; do sleep 0.02; done; rm go'  # the shell must not read: a key may still be there
    again = (f'stty noflsh; set -m; "$@"; n=148; while [ $n = 148 ]; do echo stopped; {go}; fg >/dev/null; n=$?; done; '
             'stty -noflsh; exit $n')  # noflsh: else ^Z has the terminal forget keys that nobody has read
    if os.path.exists('go'):
        os.remove('go')
    tty = Live(p, *tapes(p), shell=again)
    tty.wait_for('5 rounds compared')  # before that no origin is known that o could go to
    for i in range(40):
        tty.press('o')
        time.sleep(0.0005 * i)
        tty.press('\x1a')
        tty.wait_for('stopped')
        open('go', 'w').close()
        tty.wait_for('Program')
        tty.press('q')
        tty.wait_for('Rounds')
    tty.press('Q')
    tty.finish(0)


def a_stopped_browser_can_be_ended(p):
    """As by a shell's kill %1: the signal, and then CONT, in the background."""
    end = 'kill %1; kill -CONT %1; n=148; while [ $n = 148 ]; do sleep 0.1; wait %1; n=$?; done; echo left-$n'
    tty = Live(p, *tapes(p), shell='set -m; "$@"; echo stopped; ' + end)
    tty.wait_for('5 rounds compared')
    tty.press('\x1a')
    tty.wait_for('stopped')
    tty.wait_for('left-143')
    tty.finish(0)


def a_stop_out_of_the_foreground_is_one_stop(p):
    """What a shell does whose job's first process stopped before this one."""
    if os.path.exists('away'):
        os.remove('away')
    tty = Live(p, *tapes(p), shell=f"""exec {sys.executable} -c '
import os, signal, sys, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
kid = os.fork()
if kid == 0:
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid()) if os.tcgetpgrp(0) == os.getpid() else time.sleep(0.2)
    os.execvp(sys.argv[1], sys.argv[1:])
os.setpgid(kid, kid)
os.tcsetpgrp(0, kid)
while not os.path.exists("away"): time.sleep(0.05)
os.tcsetpgrp(0, os.getpgrp())
os.kill(kid, signal.SIGTSTP)
how = os.waitpid(kid, os.WUNTRACED)[1]
print("stopped by", signal.Signals(os.WSTOPSIG(how)).name, flush=True)
os.tcsetpgrp(0, kid)
os.kill(kid, signal.SIGCONT)
how = os.waitpid(kid, os.WUNTRACED)[1]
os.tcsetpgrp(0, os.getpgrp())
print("then", how, flush=True)
' "$@" """)
    tty.wait_for('5 rounds compared')
    open('away', 'w').close()
    tty.wait_for('stopped by SIGTSTP')
    tty.wait_for('Rounds')
    tty.press('Q')
    tty.wait_for('then 0')
    tty.finish(0)


def bytes_that_are_no_key_change_nothing(p):
    tty = Live(p, *tapes(p))
    tty.wait_for('5 rounds compared')
    os.write(tty.master, b'\xe9\xff\xc3o')  # Latin-1, nothing, half a character; and a key
    tty.wait_for('Program')
    tty.press('\x13q')  # ^S, which would stop the screen
    tty.wait_for('Rounds')
    tty.press('/t\u00e9')
    tty.wait_for('/t\u00e9_')
    tty.press('\x1b' + '?' * 5000)  # held down, and let go
    start = time.monotonic()
    tty.press('Q')
    tty.finish(0)
    check(time.monotonic() - start < 10, 'a key held down runs on')


def a_resized_terminal_is_filled(p):
    tty = Live(p, *tapes(p))
    tty.wait_for('5 rounds compared')
    tty.at = len(tty.out)
    fcntl.ioctl(tty.slave, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 130, 0, 0))
    tty.wait_for('arm')  # a column that 80 columns have no room for
    tty.press('Q')
    tty.finish(0)


def a_growing_tape_is_followed(p):
    a, _ = tapes(p)
    with open(a, 'rb') as f:
        data = f.read()
    with open('grow.tape.part', 'wb') as f:
        f.write(data[:len(data) // 2])
    tty = Live(p, 'grow.tape', '--follow')
    tty.wait_for('following')
    check(b'488 488 488' not in tty.out, 'all rounds are there at once')
    with open('grow.tape.part', 'ab') as f:
        f.write(data[len(data) // 2:])
    tty.wait_for('488 488 488')  # what the fourth round drafts
    tty.wait_for('finished')
    tty.press('Q')
    tty.finish(0)
    os.remove('grow.tape.part')


def a_tape_that_comes_late_is_waited_for_and_one_that_is_replaced_is_told(p):
    a, _ = tapes(p)
    with open(a, 'rb') as f:
        data = f.read()
    for name in ('late.tape', 'late.tape.part'):
        if os.path.exists(name):
            os.remove(name)
    tty = Live(p, 'late.tape', '--follow')
    tty.wait_for('waiting')
    with open('late.tape.part', 'wb') as f:
        f.write(data[:10])  # not even its head
    tty.wait_for('head')
    with open('late.tape.part', 'ab') as f:
        f.write(data[10:len(data) // 2])
    tty.wait_for('following')
    shutil.copy(a, 'other.tape')
    os.rename('other.tape', 'late.tape.part')
    tty.wait_for('another file has this name')
    tty.press('Q')
    tty.finish(0)
    os.remove('late.tape.part')


def a_tape_that_is_cut_is_named_as_the_reason(p):
    a, _ = tapes(p)
    shutil.copy('bad.tape', 'cut.tape')
    tty = Live(p, a, 'cut.tape')
    tty.wait_for('5 rounds compared')
    os.truncate('cut.tape', 0)
    tty.press('o\r')
    check('cut.tape: cut or written to' in tty.finish(3), 'no word of the reason')
    os.remove('cut.tape')
    tty = Live(p, a)
    tty.wait_for('5 rounds')
    tty.process.send_signal(signal.SIGBUS)  # where the check came too late
    check('a tape was cut or overwritten' in tty.finish(-signal.SIGBUS), 'no word of the reason')


def the_mouse_is_off_until_its_key(p):
    tty = Live(p, *tapes(p))
    tty.wait_for('5 rounds compared')
    check(b'1000h' not in tty.out, 'the mouse is on')
    tty.press('M')
    tty.wait_for('1000h')
    tty.press('\x1b[<0;10;7M\x1b[<0;10;7m')
    tty.read(0.3)
    tty.press('\x1b[<0;10;7M\x1b[<0;10;7m')
    tty.wait_for('Program')
    tty.press('Q')
    tty.finish(0)
    check(tty.out.rfind(b'1000l') > tty.out.rfind(b'1000h'), 'the mouse was left on')


def tmux(*args):
    return subprocess.run(['tmux', '-L', f'sparktape-{os.getpid()}', '-f', '/dev/null', *args], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False).stdout


def a_person_in_tmux_finds_exports_and_leaves(p):
    """As a person would: four keys to the worst element of the first origin, its file, and the shell as it was."""
    a, _ = tapes(p)
    if not shutil.which('tmux'):
        print('      skipped: no tmux')
        return

    def wait_for(text):
        end = time.monotonic() + 20
        while text not in (shown := tmux('capture-pane', '-p')):
            check(time.monotonic() < end, f'"{text}" never came:\n{shown}')
            time.sleep(0.05)
        return shown

    try:
        tmux('new-session', '-d', '-x', '80', '-y', '24', '-c', os.getcwd(), 'env', 'LC_ALL=C.UTF-8', 'PS1=> ', 'sh')
        tmux('send-keys', 'stty -g > before; echo rea""dy', 'Enter')
        wait_for('ready')
        tmux('send-keys', f'{p.path} browse {a} bad.tape; stty -g > after; echo do""ne', 'Enter')
        wait_for('5 rounds compared')
        tmux('send-keys', 'o')
        wait_for('Program')
        tmux('send-keys', 'Enter')
        wait_for('Value')
        tmux('send-keys', 'w')
        shown = wait_for('510 of 2560 differ')
        check('s1.attn_out' in shown, shown)
        tmux('send-keys', 'x')
        wait_for('export to')
        tmux('send-keys', 'C-u')
        tmux('send-keys', '-l', 'finding.npy!')
        tmux('send-keys', 'Enter')
        wait_for('wrote finding.npy')
        tmux('send-keys', 'Q')
        shown = wait_for('done')
        check('ready' in shown and 'sparktape  Value' not in shown, f'the main screen did not come back:\n{shown}')
        check(open('before').read() == open('after').read(), 'stty says that the terminal is another')
        check(np.load('finding.npy').size == 2560, 'the file is not the value')
    finally:
        tmux('kill-server')


TESTS = [live_keys_work_and_quitting_restores_the_terminal, judging_a_round_says_so_and_ends,
         a_signal_restores_the_terminal, a_terminal_without_a_cursor_is_refused,
         stopping_and_coming_back_keeps_the_screen, a_stop_that_comes_while_the_screen_is_drawn_is_not_lost,
         a_stopped_browser_can_be_ended, a_stop_out_of_the_foreground_is_one_stop,
         bytes_that_are_no_key_change_nothing, a_resized_terminal_is_filled,
         a_growing_tape_is_followed, a_tape_that_comes_late_is_waited_for_and_one_that_is_replaced_is_told,
         a_tape_that_is_cut_is_named_as_the_reason, the_mouse_is_off_until_its_key,
         a_person_in_tmux_finds_exports_and_leaves]
lib.main(TESTS if terminals() else [])
