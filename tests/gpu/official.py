"""The CUDA backend on weights of official size: official.py BINARY [MODEL [ARM-tpN ...]]

Makes a synthetic checkpoint of official shapes (10 GB, kept in MODEL if that does not exist), runs the same rounds on the
card and on the CPU references, and holds the card to them: every element of a recording is one that some order of sums
gives, and a graph has eager's bits (by diff). All of RUNS, or those that are named. Drafts are counted, not judged: at this
size one legal flip moves them, also between mirror and mirror64. Wants numpy, some 20 GB of memory and disk."""
import os, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'e2e'))
import admissible  # noqa: E402
from cuda_golden import cards  # noqa: E402
from lib import Product, check, read  # noqa: E402
from oracle import Oracle  # noqa: E402

RUNS = [('native-packed', 1), ('native-packed', 2), ('native-expanded', 2), ('native-hybrid', 2), ('native-hybrid-head', 2)]


def said(started, text):
    print(f'figure: {text.replace(" ", "_")} {time.time() - started:.1f} s', flush=True)


def exact_blocks(want, got):
    drafts = [k for k in want if k.endswith('.drafts')]
    same = [(want[k][1][b] == got[k][1][b]).all() for k in drafts for b in range(len(want[k][1]))]
    return f'{sum(same)} of {len(same)} blocks are those of mirror64'


def main():
    p, model = Product(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else 'official'
    runs = [(arm, tp) for arm, tp in RUNS if not sys.argv[3:] or f'{arm}-tp{tp}' in sys.argv[3:]]
    check(runs, f'no such run: {" ".join(sys.argv[3:])}; there are {" ".join(f"{a}-tp{t}" for a, t in RUNS)}')
    if not os.path.exists(os.path.join(model, 'config.json')):
        p.ok('synth', model, '--config', 'official', '--quiet', timeout=600)
    p.ok('script', 'script.safetensors', '--model', model, '--rounds', 3, '--slots', 4, '--quiet')

    def record(name, *options):
        began = time.time()
        p.ok('record', model, '--script', 'script.safetensors', '-o', name + '.tape', '--level', 'deep', '--quiet',
             *options, timeout=600)
        said(began, f'record {name}')

    def values(name):
        began = time.time()
        p.ok('export', name + '.tape', '-o', name + '.safetensors', timeout=300)
        found = read(name + '.safetensors')[0]
        said(began, f'export {name}')
        return found

    for arm in ('mirror64', 'mirror'):
        record(arm, '--arm', arm)
    want = values('mirror64')
    print(f'mirror: {exact_blocks(want, values("mirror"))}', flush=True)
    for arm, tp in runs:
        name, options = f'{arm}-tp{tp}', ['--arm', arm, '--tp', tp, '--backend', 'cuda', '--comm', 'emulated']
        record(name, *options)
        record(name + '-graph', *options, '--mode', 'graph')
        p.ok('diff', name + '.tape', name + '-graph.tape', '--quiet', timeout=300)
        eager = values(name)
        print(f'{name}: {exact_blocks(want, eager)}', flush=True)
        if tp == 2:
            began = time.time()
            report = admissible.Judge(Oracle(model), eager).run()
            said(began, 'judging every element')
            report.print()
            check(report.rows and not report.illegal(), f'{name}: illegal elements')
        for x in (name + '.safetensors', name + '.tape', name + '-graph.tape'):
            os.remove(x)
        print(f'ok    {name}', flush=True)


if __name__ == '__main__':
    if cards() == 0:
        print('no CUDA device')
        sys.exit(77)
    main()
