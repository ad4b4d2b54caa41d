"""What the browser's tests share: its tapes, recorded keys, and the browser on a pseudo-terminal of its own."""
import fcntl, os, pty, select, struct, subprocess, termios, time
from lib import check

ROWS, COLUMNS = 24, 80


def tapes(p):
    """A recording, and one of the same rounds with a fault planted in round 2. Made once."""
    if not os.path.exists('bad.tape'):
        p.ok('synth', 'model', '--config', 'tiny', '--seed', 3)
        p.ok('script', 's.safetensors', '--model', 'model', '--rounds', 5, '--slots', 2, '--seed', 4)
        p.ok('record', 'model', '--script', 's.safetensors', '-o', 'a.tape', '--arm', 'native-packed', '--level', 'deep')
        p.ok('inject', 'model', '--script', 's.safetensors', '-o', 'bad.tape', '--fault', 'row-swap@s1.attn_out:round=2')
    p.env['XDG_CONFIG_HOME'] = os.path.abspath('settings')
    return 'a.tape', 'bad.tape'


def screen(p, keys, *args):
    with open('keys', 'w') as f:
        f.write(keys)
    return p.ok('browse', *args, '--keys', 'keys').stdout


class Live:
    """browse on a pseudo-terminal of its own; shell: a script that runs it, as "$@"."""

    def __init__(self, p, *args, shell=None):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack('HHHH', ROWS, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        asan = p.env.get('ASAN_OPTIONS', '') + ':handle_segv=0:handle_sigbus=0'
        env = dict(p.env, TERM='xterm-256color', ASAN_OPTIONS=asan)
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
        return errors


def terminals():
    """Whether this machine gives out pseudo-terminals; a bare chroot does not."""
    try:
        for end in pty.openpty():
            os.close(end)
        return True
    except OSError as why:
        print(f'skip  the live tests: {why}')
        return False
