"""A worker that serves for long: soak.py BINARY CLOCK_JUMPS.so [TEST ...]

SPARKTAPE_SOAK_ROUNDS draft steps (default: a few seconds of them) of a model as small as one may be, by several clients,
with dumps that rotate, faults in every other part, connections that come and go, and a wall clock that jumps. Each answer
equals the offline recording; memory, descriptors and threads stay what they were after the first parts; dumps are whole,
and replay."""
import glob, json, os, shutil, signal, socket, subprocess, sys, time
from lib import check, main
from least import least

ROUNDS = int(os.environ.get('SPARKTAPE_SOAK_ROUNDS', 0))
PARTS = 16
# Until the first tapes are full their writers have not allocated all that they will: most of a short run. Of 10^6 rounds
# the second half grew by 0.9 MiB, in a few steps, of the heap of the thread that writes tapes.
WARM, ROOM = (PARTS // 2, 2 << 20) if ROUNDS else (5, 8 << 20)
KEEP = 4  # finished tapes; of the older ones one in KEEP is checked, and all are removed, as whoever has a full disk would
JUMPS = os.path.abspath(sys.argv.pop(2))


def model(p):
    if os.path.exists('ref.tape'):
        return
    least(p)
    p.ok('script', 's.safetensors', '--model', 'least', '--rounds', 40, '--slots', 4, '--seed', 9)
    p.ok('record', 'least', '--script', 's.safetensors', '--level', 'io', '-o', 'ref.tape')


def instrumented(p):
    with open(p.path, 'rb') as f:
        data = f.read()
    return b'__asan_init' in data or b'__tsan_init' in data


def health(pid):
    with open(f'/proc/{pid}/status') as f:
        said = dict(x.split(':', 1) for x in f)
    return {'resident': int(said['VmRSS'].split()[0]) << 10, 'threads': int(said['Threads']),
            'descriptors': len(os.listdir(f'/proc/{pid}/fd'))}


def visitors(address, n):
    """Connections that say nothing, half of a frame, or what is no frame, and go."""
    for i in range(n):
        kind, where = address.split(':', 1)
        s = socket.socket(socket.AF_UNIX) if kind == 'unix' else socket.create_connection(tuple(where.rsplit(':', 1)))
        if kind == 'unix':
            s.connect(where)
        s.sendall((b'', b'\x20\0\0\0\x81', b'GET / HTTP/1.0\r\n\r\n')[i % 3])
        s.close()


def settled(p, address, words, every, pid):
    """The worker's own account and its process, once every connection but that of the question is gone and every round that
    was to be dumped is on a tape, or counted as dropped."""
    for _ in range(600):
        status = json.loads(p.ok('status', address, '--json', *words).stdout)
        dumped = status['dump']['rounds'] + status['dump']['dropped'] == -(-status['counts']['rounds'] // every)
        if status['connections']['open'] == 1 and status['slots_unreserved'] == 4 and not status['queued'] and dumped:
            time.sleep(0.05)  # its own connection goes, too
            return status, health(pid)
        time.sleep(0.05)
    check(False, f'after 30 s still: {status}')


def dumps_checked(p, turn, keep=KEEP):
    """Of what is removed one in KEEP is whole, and what replay gives too; returns when each was made, as it says itself."""
    made = []
    tapes = sorted(glob.glob('d/*.tape'))
    for i, tape in enumerate(tapes[:len(tapes) - keep]):
        if (i + turn) % KEEP == 0:
            p.ok('doctor', tape)
            p.ok('replay', tape, 'least', '-o', 'again.tape')
        made.append(json.loads(p.ok('info', tape, '--json').stdout)['head']['created'])
        os.remove(tape)
    return made


def soaked(p, rounds, address, *words):
    every = min(50, rounds // 1000)  # of the rounds, this one is dumped: some 8 KB, a tape is 1 MiB
    model(p)
    shutil.rmtree('d', ignore_errors=True)
    os.mkdir('d')
    jumps = {} if instrumented(p) else {'LD_PRELOAD': JUMPS}
    worker = subprocess.Popen([p.path, 'serve', 'least', '--listen', address, '--json', '--frame-timeout', '0.2',
                               '--threads', '1', '--dump-dir', 'd', '--dump-rounds', f'every:{every}', '--dump-size', '1',
                               *words], env=dict(p.env, **jumps), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = json.loads(worker.stdout.readline())['ready']
        seen, made, answers, mismatches, began = [], [], 0, 0, time.monotonic()
        while len(seen) < PARTS:
            done = seen[-1]['rounds'] if seen else 0
            left = rounds - done
            faults = ('--faults', f'all:0.003@{len(seen)}') if len(seen) % 2 else ()
            repeat = max(1, left // (PARTS - len(seen)) // 90)  # 40 rounds of up to 4 clients are some 90 steps
            r = p.ok('drive', address, '--script', 's.safetensors', '--check', 'ref.tape', '--concurrency', 4, '--repeat',
                     repeat, '--json', *faults, *words, timeout=3600, exits=(0, 1))
            n = json.loads(r.stdout)
            check(r.returncode == 0 and n['mismatches'] == 0 and n['checked'] == n['drafts'] == 130 * repeat, r.stdout)
            answers += n['checked']
            visitors(address, 12)
            status, now = settled(p, address, words, every, worker.pid)
            dump = status['dump']
            check(status['state'] == 'serving' and not dump['failed'] and dump['mismatches'] == 0, str(status))
            seen.append(dict(now, rounds=status['counts']['rounds']))
            made += dumps_checked(p, len(seen))
            if ROUNDS:
                print(f'{time.monotonic() - began:.0f} s: {seen[-1]}, dumped {dump["rounds"]}, dropped {dump["dropped"]}, '
                      f'{status["connections"]["accepted"]} connections', flush=True)
        warm, late = seen[WARM], seen[WARM:]
        for what, room in (('resident', ROOM), ('descriptors', 0), ('threads', 0)):
            if what != 'resident' or not instrumented(p):  # freed memory is kept there, to find who uses it
                most = max(x[what] for x in late)
                check(most - warm[what] <= room, f'{what}: {[x[what] for x in seen]}')
        worker.send_signal(signal.SIGTERM)
        _, error = worker.communicate(timeout=60)
        check((worker.returncode, error) == (0, ''), f'exit {worker.returncode}: {error}')
        check(not glob.glob('d/*.part'), str(os.listdir('d')))
        made += dumps_checked(p, 0, keep=0)
        check(not jumps or len(made) < 5 or max(made) - min(made) > 10 ** 8, f'the clock did not jump: {made}')
        if ROUNDS:
            print(f'{answers} answers, {seen[-1]["rounds"] / (time.monotonic() - began):.0f} steps a second', flush=True)
    finally:
        worker.kill()
        worker.communicate()


def nothing_grows(p):
    soaked(p, ROUNDS or (3000 if instrumented(p) else 20000), 'unix:./w.sock')


def nothing_grows_through_tls(p):
    with open('k', 'w') as f:
        f.write('00112233445566778899aabbccddeeff' * 2 + '\n')
    os.chmod('k', 0o600)
    soaked(p, ROUNDS // 10 or (1000 if instrumented(p) else 5000), 'tcp:127.0.0.1:0', '--tls-key', 'k')


main([nothing_grows, nothing_grows_through_tls])
