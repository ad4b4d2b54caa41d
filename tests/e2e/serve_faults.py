"""A worker whose surroundings fail: serve_faults.py BINARY [TEST ...]

Signals at any moment, disks that fill up or vanish, clients that say nothing, and strangers at the other end."""
import json, os, random, resource, select, shutil, signal, socket, subprocess, threading, time
from lib import Failed, check, main
from serve import KEY, Client, Worker, model, played

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


RUNNING = []


def begin(p, *options, before=None):
    """A worker that the test ends; one that a failed test left is killed by the next."""
    while RUNNING:
        RUNNING.pop().kill()
    RUNNING.append(subprocess.Popen([p.path, 'serve', model(p), '--listen', 'unix:./w.sock', *map(str, options)], env=p.env,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before))
    return RUNNING[-1]


def until(what, text, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        check(time.monotonic() < end, f'not in {seconds} s: {text}')
        time.sleep(0.005)


def stopped_while_it_loads(p):
    """A worker that has its socket and is not ready, and does not go on until SIGCONT."""
    for _ in range(100):
        shutil.rmtree('d', ignore_errors=True)
        os.mkdir('d')
        process = begin(p, '--dump-dir', 'd', '--dump-rounds', 'all')
        while not os.path.exists('w.sock') and process.poll() is None:
            pass
        time.sleep(random.uniform(0, 0.02))
        process.send_signal(signal.SIGSTOP)
        if not select.select([process.stdout], [], [], 0.05)[0]:
            return process
        process.kill()
        process.communicate()
        os.remove('w.sock')
    raise Failed('it is always ready at once')


def a_signal_while_it_loads_ends_it_and_leaves_nothing(p):
    random.seed(11)
    if os.path.exists('w.sock'):  # of a worker that the run before had to kill
        os.remove('w.sock')
    for how in ENDING * 4:
        process = stopped_while_it_loads(p)
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        out, error = process.communicate(timeout=30)
        check((process.returncode, out, error) == (-how, '', ''), f'{how}: exit {process.returncode} {out}{error}')
        check(not os.path.exists('w.sock'), f'{how}: the socket is still there')
        check(os.listdir('d') == [], f'{how}: {os.listdir("d")}')


def a_signal_when_it_serves_ends_it_in_order(p):
    """The tape is finished, whatever it was doing; a second signal may end that at once, but leaves no socket either."""
    for how in ENDING:
        for twice in (False, True):
            shutil.rmtree('d', ignore_errors=True)
            os.mkdir('d')
            process = begin(p, '--dump-dir', 'd', '--dump-rounds', 'all')
            played(process.stdout.readline().split()[1])
            for _ in range(1 + twice):
                process.send_signal(how)
            _, error = process.communicate(timeout=30)
            check(process.returncode in ((0, -how) if twice else (0,)), f'{how}: exit {process.returncode} {error}')
            check(not os.path.exists('w.sock'), f'{how}: the socket is still there')
            left = os.listdir('d')
            check(len(left) == 1 and (twice or left[0].endswith('.tape')), f'{how}: {left}')


def an_ignored_signal_stays_ignored(p):
    process = begin(p, '--json', before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # as nohup does
    process.send_signal(signal.SIGHUP)
    check(json.loads(process.stdout.readline())['ready'], 'not ready')
    process.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    p.ok('status', './w.sock')
    process.send_signal(signal.SIGTERM)
    check(process.wait(30) == 0, f'exit {process.returncode}')


def dumps_that_could_not_be_written_are_told_at_the_end(p):
    """Replies are the same, status tells, and so do the exit code and one line."""
    want = None
    with Worker(p) as w:
        want = played(w.address)
    def small():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))
    for name, before, size in (('full', small, 1024), ('gone', None, 1024), ('gone while it rotates', None, 1)):
        shutil.rmtree('d', ignore_errors=True)
        os.mkdir('d')
        process = begin(p, '--json', '--dump-dir', 'd', '--dump-rounds', 'all', '--dump-size', size, before=before)
        address = json.loads(process.stdout.readline())['ready']
        if name != 'full':
            shutil.rmtree('d')
        for _ in range(12):
            check(played(address) == want, f'{name}: another draft')
        check(json.loads(p.ok('status', address, '--json').stdout)['state'] == 'serving', name)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=30)
        check(process.returncode == 5, f'{name}: exit {process.returncode}')
        check(error.count('\n') == 1 and 'dumps failed' in error and 'rounds kept' in error, f'{name}: {error}')


def silent_connections_lock_nobody_out(p):
    with Worker(p, '--frame-timeout', '0.3') as w:
        c = Client(w.address)
        c.hello()
        silent = []
        for _ in range(63):
            silent.append(socket.socket(socket.AF_UNIX))
            silent[-1].connect('w.sock')
        until(lambda: p.run('status', w.address).returncode == 0, 'no room for others')
        connections = json.loads(p.ok('status', w.address, '--json').stdout)['connections']
        check(connections['timeouts'] > 0 and connections['turned_away'] >= 0, str(connections))
        time.sleep(0.5)
        check(c.call('status')['ok'], 'the one with a session was closed')


def an_unknown_op_is_named(p):
    with Worker(p) as w:
        r = Client(w.address).call('flush')
        check(r['refusal'] == 'message' and "'flush'" in r['text'] and 'hello' in r['text'], str(r))


class Stranger:
    """Listens on TCP and says something to everybody, or nothing."""

    def __init__(self, words):
        self.s = socket.create_server(('127.0.0.1', 0))
        self.address = f'tcp:127.0.0.1:{self.s.getsockname()[1]}'
        self.words, self.taken = words, []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                c, _ = self.s.accept()
            except OSError:
                return
            self.taken.append(c)
            if self.words is not None:
                c.recv(4)
                c.sendall(self.words)
                c.shutdown(socket.SHUT_WR)


def strangers_are_told_by_address_and_what_was_found(p):
    p.ok('script', 's.safetensors', '--model', model(p), '--rounds', 2, '--slots', 1)
    ask = lambda address: (('status', address), ('drive', address, '--script', 's.safetensors', '--timeout', 1))
    http = Stranger(b'HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n')
    silent, mute = Stranger(None), Stranger(b'')
    for words in ask(http.address):
        p.refused(3, (http.address, "'HTTP/1.1 400", 'wanted a sparktape worker'), *words)
    for words in ask(mute.address):
        p.refused(5, (mute.address, 'closed without a word', 'wanted a sparktape worker'), *words)
    p.refused(5, (silent.address, 'after 1 s', 'silence', 'wanted a sparktape worker'), *ask(silent.address)[1])
    nobody = socket.create_server(('127.0.0.1', 0))
    address = f'tcp:127.0.0.1:{nobody.getsockname()[1]}'
    nobody.close()
    for words in ask(address):
        p.refused(5, (address, 'Connection refused'), *words)
    for words in ask('unix:./s.safetensors'):
        p.refused(5, ('s.safetensors', 'Connection refused'), *words)
    with open('k', 'w') as f:
        f.write(KEY + '\n')
    os.chmod('k', 0o600)
    p.refused(5, (http.address, 'tls', 'TLS 1.3'), 'status', http.address, '--tls-key', 'k')
    with Worker(p, '--tls-key', 'k', address='tcp:127.0.0.1:0') as w:
        for words in ask(w.address):
            p.refused(5, (w.address, '--tls-key'), *words)


def dump_words_need_each_other(p):
    p.refused(2, ('--dump-rounds', '--dump-dir'), 'serve', model(p), '--dump-rounds', 'all')
    p.refused(2, ('--dump-rounds', '--dump-dir'), 'serve', model(p), '--dump-dir', '.')


if __name__ == '__main__':
    main([a_signal_while_it_loads_ends_it_and_leaves_nothing, a_signal_when_it_serves_ends_it_in_order,
          an_ignored_signal_stays_ignored, dumps_that_could_not_be_written_are_told_at_the_end,
          silent_connections_lock_nobody_out, an_unknown_op_is_named, strangers_are_told_by_address_and_what_was_found,
          dump_words_need_each_other])
