"""The CUDA backend against the independent oracle, through the command line: cuda_golden.py BINARY [TEST ...]

For every native arm, one and two ranks, eager and graphs, both combines: drafts are the oracle's but for near-ties
(tests/e2e/golden.py), every element of a deep recording is one that some order of sums gives (tests/e2e/admissible.py), a
graph has eager's bits, two cards have the bits of two emulated ranks, and padding, other slots and replays change
nothing."""
import json, os, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'e2e'))
import admissible  # noqa: E402
from golden import drafts_agree  # noqa: E402
from lib import case, check, golden, main, read  # noqa: E402
from oracle import Oracle  # noqa: E402

ARMS = ['native-packed', 'native-expanded', 'native-hybrid', 'native-hybrid-head']


def cards():
    try:
        r = subprocess.run(['nvidia-smi', '-L'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        return 0
    return len([x for x in r.stdout.splitlines() if x.startswith('GPU ')])


def record(p, folder, script, name, *options):
    tape, out = f'{folder}/{name}.tape', f'{folder}/{name}.safetensors'
    p.ok('record', folder, '--script', script, '-o', tape, '--level', 'deep', '--backend', 'cuda', *options)
    p.ok('export', tape, '-o', out)
    return read(out)[0]


def same_bits(a, b, what):
    check(sorted(a) == sorted(b), f'{what}: other values: {sorted(set(a) ^ set(b))[:5]}')
    for k, (dtype, x) in a.items():
        y = b[k][1]
        check(x.shape == y.shape and x.tobytes() == y.tobytes(), f'{what}: {k} differs')


def legal(folder, values, what):
    report = admissible.Judge(Oracle(folder), values).run()
    check(report.rows, f'{what}: nothing was judged')
    if report.illegal():
        report.print()
    check(not report.illegal(), f'{what}: illegal elements')


def hold(p, folder, seed, preset, arms=ARMS, **kw):
    script = case(folder, seed, preset, **kw)
    for combine in ('exact', 'fused'):
        want = golden(folder, script, combine)
        for arm in arms:
            for tp in (1, 2):
                name = f'{arm}-tp{tp}-{combine}'
                options = ['--arm', arm, '--tp', tp, '--combine', combine, '--comm', 'emulated']
                eager = record(p, folder, script, name, *options)
                drafts_agree(want, eager, f'{folder} {name}')
                if combine == 'exact':
                    legal(folder, eager, f'{folder} {name}')
                same_bits(eager, record(p, folder, script, name + '-graph', *options, '--mode', 'graph'), f'{name}: graph')
                if tp == 2 and cards() > 1:
                    options[-1] = 'nccl'
                    same_bits(eager, record(p, folder, script, name + '-nccl', *options), f'{name}: nccl')
                    same_bits(eager, record(p, folder, script, name + '-nccl-graph', *options, '--mode', 'graph'),
                              f'{name}: nccl graph')


def tiny_seed_1_holds(p):
    hold(p, 'tiny-1', 1, 'tiny')


def tiny_seed_2_holds(p):
    hold(p, 'tiny-2', 2, 'tiny')


def mid_seed_3_holds(p):
    hold(p, 'mid-3', 3, 'mid')


def small_window_holds(p):
    hold(p, 'window-48', 4, 'tiny', arms=ARMS[:1], window=48)


def other_expert_counts_hold(p):
    hold(p, 'experts', 5, 'tiny', arms=ARMS[:2], edit=lambda c: c.update(E=12, K=4))


def a_kx_arm_has_the_bits_of_its_base(p):
    """So what holds for the base holds for it."""
    script = case('kx', 7, 'tiny')
    for base in ('native-packed', 'native-hybrid'):
        for tp in (1, 2):
            options = ['--tp', tp, '--comm', 'emulated']
            want = record(p, 'kx', script, f'{base}-{tp}', '--arm', base, *options)
            for mode in ('eager', 'graph'):
                name = f'{base}-kx-{tp}-{mode}'
                same_bits(want, record(p, 'kx', script, name, '--arm', f'{base}-kx', '--mode', mode, *options), name)
                said = p.ok('diff', f'kx/{base}-{tp}.tape', f'kx/{name}.tape').stdout
                check(said.startswith('SAME'), f'{name}: {said}')
            said = json.loads(p.ok('certify', f'kx/{name}.tape', 'kx', '--json').stdout)
            check(said['verdict'] == 'PASS' and said['illegal'] == 0, f'{name}: {said}')


def a_tape_of_the_card_replays_on_the_cpu(p):
    script = case('offline', 6, 'tiny')
    record(p, 'offline', script, 'card', '--mode', 'graph')
    p.ok('replay', 'offline/card.tape', 'offline', '--arm', 'mirror64', '-o', 'offline/cpu.tape', exits=(0, 1))
    p.ok('diff', 'offline/card.tape', 'offline/cpu.tape', exits=(0, 1))
    p.ok('export', 'offline/cpu.tape', '-o', 'offline/cpu.safetensors')
    drafts_agree(golden('offline', script), read('offline/cpu.safetensors')[0], 'replayed on the CPU')


if __name__ == '__main__':
    if cards() == 0:
        print('no CUDA device')
        sys.exit(77)
    main([tiny_seed_1_holds, tiny_seed_2_holds, mid_seed_3_holds, small_window_holds, other_expert_counts_hold,
          a_kx_arm_has_the_bits_of_its_base, a_tape_of_the_card_replays_on_the_cpu])
