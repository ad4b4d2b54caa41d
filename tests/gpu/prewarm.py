"""What a prewarm costs at load and spares the first request: prewarm.py BINARY [MODEL [STARTS]] [--cpu]

Starts the worker STARTS times (2) without and with it, in turn: how long until it is ready, how long its first request, a
script of one round, takes its client, and how long the second one. Every answer must be the recording's, which was made
without a worker: warming leaves no trace. MODEL: a checkpoint, kept; without it a tiny one is made. --cpu: where there is
no card; a CPU has next to nothing to prepare, so nothing is asked of its times."""
import json, os, signal, statistics, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'e2e'))
from lib import Product, check  # noqa: E402

SOCKET = 'unix:./prewarm.sock'


def has_card(p):
    return bool(json.loads(p.ok('doctor', '--system', '--json').stdout)['cards'])


def request(p, traffic, tape):
    r = json.loads(p.ok('drive', SOCKET, '--script', traffic, '--check', tape, '--json').stdout)
    check(r['checked'] > 0 and r['mismatches'] == 0, f'another answer: {r["first_mismatch"]}')
    return r['first_us'] * 1e-3


def start(p, model, backend, prewarm, traffic, tape):
    """Milliseconds: until ready, the first request, the second."""
    env = dict(p.env, SPARKTAPE_PREWARM=prewarm)
    began = time.monotonic()
    worker = subprocess.Popen([p.path, 'serve', model, '--backend', backend, '--listen', SOCKET, '--json', '--quiet'],
                              env=env, stdout=subprocess.PIPE, text=True)
    try:
        line = worker.stdout.readline()
        load = (time.monotonic() - began) * 1e3
        check(line and json.loads(line)['prewarm'] == (prewarm == 'on'), f'serve did not get ready: {line}')
        times = load, request(p, traffic, tape), request(p, traffic, tape)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
        worker.stdout.close()
    return times


def main(words):
    p = Product(words[0])
    cpu = '--cpu' in words
    words = [x for x in words if x != '--cpu']
    model, starts = words[1] if len(words) > 1 else 'prewarm_tiny', int(words[2]) if len(words) > 2 else 2
    if not cpu and not has_card(p):
        print('no CUDA device')
        return 77
    backend = 'cpu' if cpu else 'cuda'
    if not os.path.exists(os.path.join(model, 'config.json')):
        p.ok('synth', model)
    traffic, tape = 'prewarm.safetensors', 'prewarm.tape'
    p.ok('script', traffic, '--model', model, '--rounds', 1, '--slots', 1)
    p.ok('record', model, '--script', traffic, '-o', tape, '--level', 'io', '--backend', backend, '--mode', 'graph',
         timeout=600)
    found = {'off': [], 'on': []}
    start(p, model, backend, 'off', traffic, tape)  # brings the files to memory
    for _ in range(starts):
        for prewarm in found:
            found[prewarm].append(start(p, model, backend, prewarm, traffic, tape))
    middle = {prewarm: [statistics.median(x) for x in zip(*times)] for prewarm, times in found.items()}
    print(f'{"prewarm":8} {"load ms":>10} {"first ms":>10} {"second ms":>10}    median of {starts} starts, {backend}')
    for prewarm, times in middle.items():
        print(f'{prewarm:8} ' + ' '.join(f'{x:10.2f}' for x in times))
        for name, x in zip(('load', 'first', 'second'), times):
            print(f'figure: prewarm.{prewarm}.{name} {x:.3f} ms')
    print(f'the first request takes {middle["off"][1] - middle["on"][1]:.2f} ms less, loading '
          f'{middle["on"][0] - middle["off"][0]:.2f} ms more; all answers are the recording\'s')
    check(cpu or middle['on'][1] < middle['off'][1], 'a prewarm spares the first request nothing')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
