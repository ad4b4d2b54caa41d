"""The worker as a process: serve.py BINARY [TEST ...]

Its words and what it prints, a client of another language, signals, and what is refused before anything is loaded."""
import functools, json, os, shutil, signal, socket, struct, subprocess, time
import msgpack
import numpy as np
from lib import Failed, check, main

KEY = '00112233445566778899aabbccddeeff' * 2


@functools.lru_cache(maxsize=None)
def model(p):
    shutil.rmtree('tiny', ignore_errors=True)
    p.ok('synth', 'tiny', '--seed', 5)
    return 'tiny'


class Worker:
    """sparktape serve until the end of the block; self.line is what it said when it was ready."""

    def __init__(self, p, *options, address='unix:./w.sock', env=None):
        self.process = subprocess.Popen([p.path, 'serve', model(p), '--listen', address, *map(str, options)],
                                        env=dict(p.env, **(env or {})), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.line = self.process.stdout.readline()
        if not self.line:
            raise Failed(f'serve did not get ready: {self.process.stderr.read()[-400:]}')
        self.address = json.loads(self.line)['ready'] if '--json' in options else self.line.split()[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(signal.SIGKILL)

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        status = self.process.wait(30)
        if how != signal.SIGKILL:
            self.said = self.line + self.process.stdout.read() + self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return status


class Client:
    def __init__(self, address):
        kind, where = address.split(':', 1)
        if kind == 'unix':
            self.s = socket.socket(socket.AF_UNIX)
            self.s.connect(where)
        else:
            host, port = where.rsplit(':', 1)
            self.s = socket.create_connection((host.strip('[]'), int(port)))
        self.s.settimeout(60)
        self.n = 0

    def send(self, op, **keys):
        self.n += 1
        body = msgpack.packb(dict(op=op, id=self.n, **keys))
        self.s.sendall(struct.pack('<I', len(body)) + body)

    def read(self, n):
        data = b''
        while len(data) < n:
            part = self.s.recv(n - len(data))
            check(part, 'the worker closed the connection')
            data += part
        return data

    def receive(self):
        return msgpack.unpackb(self.read(struct.unpack('<I', self.read(4))[0]))

    def call(self, op, **keys):
        self.send(op, **keys)
        return self.receive()

    def hello(self, name='python', **keys):
        wanted = dict(version=1, client=name, checkpoint='', arm='', positions=100, slots=1)
        return self.call('hello', **dict(wanted, **keys))


def rows(hello, first, n):
    """bf16 rows that depend on their position alone."""
    width = hello['n_taps'] * hello['dim']
    def row(pos):
        values = np.random.default_rng(pos).standard_normal(width).astype('<f4')
        return (values.view('<u4') >> 16).astype('<u2').tobytes()
    return b''.join(row(first + i) for i in range(n))


def played(address, steps=6):
    """Drafts of one client, its rows inserted one by one."""
    c = Client(address)
    h = c.hello()
    slot, e = c.call('open', epoch=h['epoch'])['slot'], h['epoch']
    out = []
    for pos in range(steps):
        check(c.call('insert', epoch=e, slot=slot, pos=pos, rows=1, taps=rows(h, pos, 1))['last'] == pos, 'insert')
        r = c.call('draft', epoch=e, n_out=5, slots=[slot], anchors=[pos + 1], pos=[pos])
        check(r['ok'] and r['step_us'] > 0 and r['queue_us'] >= 0, str(r))
        out.append((r['drafts'], r['confidence']))
    c.s.close()
    return out


def a_client_of_another_language_is_served_everywhere_alike(p):
    want = None
    for options, address in (((), 'unix:./w.sock'), (('--mode', 'eager'), 'unix:./w.sock'),
                             (('--tp', 2), 'tcp:127.0.0.1:0'), (('--prewarm', 'off'), 'tcp:[::1]:0')):
        try:
            worker = Worker(p, *options, address=address)
        except Failed as why:
            if '::1' in address:  # no IPv6 here
                continue
            raise why
        with worker as w:
            got = played(w.address)
            want = want or got
            check('--tp' in options or got == want, f'{options} {address}: another draft')
            check(w.end() == 0, 'SIGTERM: exit is not 0')


def ready_tells_what_is_served(p):
    with Worker(p, '--slots', 2, '--positions', 50) as w:
        check(w.line.startswith('ready unix:./w.sock arm native-packed slots 2 positions 50 prewarm on '), w.line)
        check(os.stat('w.sock').st_mode & 0o777 == 0o600, 'the socket is not ours alone')
        p.refused(5, 'somebody does already', 'serve', model(p), '--listen', 'unix:./w.sock')
    # killed, the first one left its socket behind
    with Worker(p, '--json', env={'DSPARK_WORKER_ARM': 'native-expanded', 'SPARKTAPE_PREWARM': 'off'}) as w:
        said = json.loads(w.line)
        check((said['arm'], said['prewarm'], said['slots']) == ('native-expanded', False, 4), w.line)
        h = Client(w.address).hello(arm='native-packed')
        check(h['refusal'] == 'arm' and 'native-expanded' in h['text'], str(h))
        status = json.loads(p.ok('status', w.address, '--json').stdout)
        check(status['state'] == 'serving' and status['counts']['refused']['arm'] == 1, str(status))
        planned = status['about']['planned_bytes']
        check(planned['total'] > planned['windows'] > 0, str(planned))
        wrong = Client(w.address).hello(checkpoint='00' * 32)
        check(wrong['refusal'] == 'identity' and status['checkpoint'] in wrong['text'], str(wrong))
        right = Client(w.address).hello(checkpoint=status['checkpoint'])
        check(right['ok'] and right['identity_compared'], str(right))
    # options win over the environment
    with Worker(p, '--arm', 'mirror', '--prewarm', 'on',
                env={'DSPARK_WORKER_ARM': 'native-expanded', 'SPARKTAPE_PREWARM': 'off'}) as w:
        check(' arm mirror ' in w.line and ' prewarm on ' in w.line, w.line)


def status_reads_as_text(p):
    with Worker(p) as w:
        played(w.address)
        text = p.ok('status', './w.sock').stdout
        for part in ('serving, arm native-packed', 'rounds       6 of', 'insert 6, draft 6', 'p99.9', 'planned',
                     'slot 3      free'):
            check(part in text, f'"{part}" is not in:\n{text}')
        w.end()
    p.refused(5, 'w.sock', 'status', './w.sock')


def tls_needs_its_key(p):
    with open('k', 'w') as f:
        f.write(KEY + '\n')
    os.chmod('k', 0o600)
    with Worker(p, '--tls-key', 'k', address='tcp:127.0.0.1:0') as w:
        check('serving' in p.ok('status', w.address, '--tls-key', 'k').stdout, 'no status through TLS')
        p.refused(5, w.address, 'status', w.address)
        for name in ('cmdline', 'environ'):
            with open(f'/proc/{w.process.pid}/{name}', 'rb') as f:
                check(KEY.encode() not in f.read(), f'the key is in /proc/PID/{name}')
        check(w.end() == 0, 'SIGTERM: exit is not 0')
        check(KEY not in w.said, 'the key was printed')


def words_are_checked_before_anything_is_loaded(p):
    m = 'nowhere'
    for exits, words, options in (
            (2, '--tls-key', ('--listen', 'tcp:0.0.0.0:0')), (2, 'tcp:HOST:PORT', ('--listen', 'somewhere')),
            (2, '--slots', ('--slots', 5)), (2, '--slots', ('--slots', 0)), (2, '--positions', ('--positions', 1 << 30)),
            (2, '--prewarm', ('--prewarm', 'maybe')), (2, '--frame-timeout', ('--frame-timeout', '0')),
            (2, 'arm', ('--arm', 'native')), (2, '--dump-rounds', ('--dump-dir', 'd')),
            (2, '--dump-rounds', ('--dump-dir', 'd', '--dump-rounds', 'x')), (2, '--on-mismatch', ('--on-mismatch', 'ask')),
            (3, 'nothing.key', ('--tls-key', 'nothing.key', '--listen', 'tcp:127.0.0.1:0')),
            (3, 'nowhere', ('--listen', 'unix:./w.sock'))):
        p.refused(exits, words, 'serve', m, *options)
    check(not os.path.exists('w.sock'), 'a socket was left behind')


def signals_end_it_in_order_and_once(p):
    for how in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with Worker(p) as w:
            c = Client(w.address)
            h = c.hello()
            slot = c.call('open', epoch=h['epoch'])['slot']
            for pos in range(40):
                c.send('insert', epoch=h['epoch'], slot=slot, pos=pos, rows=1, taps=rows(h, pos, 1))
                c.send('draft', epoch=h['epoch'], n_out=5, slots=[slot], anchors=[1], pos=[pos])
            w.process.send_signal(how)
            seen = []
            try:
                while True:
                    seen.append(c.receive())
            except (Failed, OSError):
                pass
            done = [r['ok'] for r in seen]
            check(done == sorted(done, reverse=True), 'a request was done after one was refused')
            check(all(r['ok'] or r['refusal'] == 'closing' for r in seen), str(seen[-1]))
            check(w.process.wait(30) == 0, f'{how}: exit {w.process.returncode}')
            check(not os.path.exists('w.sock'), 'the socket is still there')


def a_stalled_frame_is_given_up(p):
    with Worker(p, '--frame-timeout', '0.2') as w:
        c = Client(w.address)
        c.s.sendall(struct.pack('<I', 1000) + b'\x81')
        start = time.monotonic()
        r = c.receive()
        check(r['refusal'] == 'message' and time.monotonic() - start < 20, str(r))
        check(c.s.recv(1) == b'', 'not closed')


if __name__ == '__main__':
    main([a_client_of_another_language_is_served_everywhere_alike, ready_tells_what_is_served, status_reads_as_text,
          tls_needs_its_key, words_are_checked_before_anything_is_loaded, signals_end_it_in_order_and_once,
          a_stalled_frame_is_given_up])
