"""The engine against the oracle on shapes, weights and traffic that no preset has: shapes.py BINARY [long] [TEST ...]

Every case is a checkpoint and a script made here from a seed; the oracle is generic in the config. What is demanded is what
golden.py demands: mirror64 bit-equal to the oracle, every other arm and rank count equal in its drafts. `long` adds the
cases that the registered test has no time for."""
import os, shutil, sys
import numpy as np
from golden import drafts_agree, same_as_oracle
from lib import as_float, check, golden, main, read
from shape_cases import CONFIGS, LONG_CONFIGS, LONG_WEIGHTS, TAPS, WEIGHTS, far, huge_taps, make


# ---- holding a case ----

FEW_RUNS = [('mirror', 1), ('native-packed', 2), ('native-expanded', 2)]
EVERY_RUN = [('mirror', 1), ('native-packed', 1), ('native-expanded', 1), ('native-hybrid', 1), ('native-packed', 2),
             ('native-expanded', 2), ('native-hybrid', 2), ('native-packed', 4), ('native-expanded', 4)]
RUNS = [('mirror', 1), ('native-expanded', 1), ('native-packed', 2), ('native-hybrid', 2), ('native-packed', 4),
        ('native-expanded', 4)]


def record(p, folder, name, *options):
    """Records the folder's script and returns the joined export."""
    tape, out = f'{folder}/{name}.tape', f'{folder}/{name}.safetensors'
    p.ok('record', folder, '--script', f'{folder}/script.safetensors', '-o', tape, '--level', 'deep', *options)
    p.ok('export', tape, '-o', out)
    return read(out)[0]


def same_bits(want, got, what):
    check(sorted(want) == sorted(got), f'{what}: other values: {sorted(set(want) ^ set(got))[:5]}')
    for k, (dtype, w) in want.items():
        gd, g = got[k]
        check(gd == dtype and g.shape == w.shape and g.tobytes() == w.tobytes(), f'{what}: {k} differs')


def unequal(want, got, what):
    """Names every value of mirror64 that is not the oracle's bit for bit, although it is within the bar."""
    for k, (dtype, w) in want.items():
        differ = np.nonzero((w != got[k][1]).ravel())[0]
        if len(differ):
            print(f'      {what}: {k}: {len(differ)} of {w.size} elements not bit-equal, first at {differ[0]}')


def hold(p, folder, seed, tps=(1, 2), combine='exact', runs=FEW_RUNS, **kw):
    make(folder, seed, **kw)
    want = golden(folder, f'{folder}/script.safetensors', combine)
    got = record(p, folder, 'mirror64', '--arm', 'mirror64', '--combine', combine)
    same_as_oracle(want, got, f'{folder} mirror64')
    unequal(want, got, folder)
    logits = next(k for k in want if k.endswith('head.logits'))
    check(np.isfinite(as_float(want[logits])).all(), f'{folder}: {logits} is not finite')
    for arm, tp in runs:
        if tp in tps:
            name = f'{arm}-tp{tp}'
            drafts_agree(want, record(p, folder, name, '--arm', arm, '--tp', tp, '--combine', combine), f'{folder} {name}')
    shutil.rmtree(folder)  # what failed stays to be looked at


def config_case(name, seed, runs, tps, config):
    return lambda p: hold(p, name, seed, tps=tps, config=config, runs=runs)


def weights_case(name, seed, kw):
    return lambda p: hold(p, name, seed, **kw)


def taps_case(name, seed, taps):
    # Blocked sums multiply in f32 before the scale: 3e38 leaves its range there, in float64 it does not.
    return lambda p: hold(p, name, seed, taps=taps, runs=[] if taps is huge_taps else FEW_RUNS)


# ---- ways of running that change no bit ----

def late_prompts_and_odd_numbers_hold(p):
    hold(p, 'far', 400, traffic=far, runs=EVERY_RUN)


def fused_late_prompts_hold(p):
    hold(p, 'far-fused', 401, traffic=far, combine='fused')


def modes_and_threads_change_no_bit(p):
    make('modes', 410, traffic=far)
    for combine, arm, tp in (('exact', 'native-packed', 2), ('fused', 'native-expanded', 2), ('fused', 'mirror64', 1)):
        options = ('--arm', arm, '--tp', tp, '--combine', combine)
        want = record(p, 'modes', 'eager', *options)
        few = (('--mode', 'graph'), ('--threads', 3))
        for more in (*few, ('--threads', 1), ('--threads', 2), ('--mode', 'graph', '--threads', 1)) if tp == 2 else few:
            same_bits(want, record(p, 'modes', 'other', *options, *more), f'{arm} {more}')


def f64_sums_make_packed_and_expanded_mirror64(p):
    make('f64', 411)
    want = record(p, 'f64', 'mirror64', '--arm', 'mirror64')
    for arm in ('native-packed', 'native-hybrid', 'native-expanded'):
        same_bits(want, record(p, 'f64', arm, '--arm', arm, '--acc', 'f64'), arm)


def exports_come_back_as_the_tape(p):
    """export, import, diff; the import replayed; the export run as a script."""
    make('back', 412, traffic=far)
    options = ('--arm', 'native-packed', '--tp', 2)
    want = record(p, 'back', 'run', *options)
    p.ok('import', 'back/run.safetensors', '-o', 'back/import.tape', '--identity-from', 'back/run.tape')
    p.ok('diff', 'back/run.tape', 'back/import.tape')
    p.ok('import', 'back/run.safetensors', '-o', 'back/unknown.tape')
    p.ok('diff', 'back/run.tape', 'back/unknown.tape')
    p.ok('export', 'back/unknown.tape', '-o', 'back/unknown.safetensors')
    same_bits(want, read('back/unknown.safetensors')[0], 'export of the import')
    p.ok('replay', 'back/import.tape', 'back', '-o', 'back/replay.tape')
    p.ok('diff', 'back/run.tape', 'back/replay.tape')
    os.replace('back/run.safetensors', 'back/script.safetensors')
    same_bits(want, record(p, 'back', 'again', *options), 'the export as a script')


def replays_give_the_tape(p):
    make('replay', 413, traffic=far)
    for arm, tp, combine in (('native-packed', 2, 'exact'), ('mirror64', 1, 'fused')):
        record(p, 'replay', 'run', '--arm', arm, '--tp', tp, '--combine', combine)
        for windows in 'AB':
            p.ok('replay', 'replay/run.tape', 'replay', '--windows', windows, '-o', 'replay/again.tape')
            p.ok('diff', 'replay/run.tape', 'replay/again.tape')
        r = p.ok('diff', 'replay/run.tape', 'replay/run.tape', '--forced', '--model', 'replay')
        check(r.stdout.startswith('SAME'), r.stdout[:200])


def another_order_of_sums_is_seen(p):
    """diff can say no: blocked sums are not float64 sums, free-running and forced."""
    make('differs', 414)
    record(p, 'differs', 'run', '--arm', 'mirror')
    record(p, 'differs', 'other', '--arm', 'mirror64')
    p.ok('diff', 'differs/run.tape', 'differs/other.tape', exits=(1,))
    p.ok('diff', 'differs/run.tape', 'differs/other.tape', '--forced', '--model', 'differs', exits=(1,))


def joined(parts, want):
    """The ranks' parts put together as their shapes say."""
    if len(parts) == 1 or all(x.tobytes() == parts[0].tobytes() for x in parts) and parts[0].shape == want.shape:
        return parts[0]
    for axis in range(want.ndim):
        others_fit = all(np.delete(x.shape, axis).tolist() == np.delete(want.shape, axis).tolist() for x in parts)
        if others_fit and sum(x.shape[axis] for x in parts) == want.shape[axis]:
            return np.concatenate(parts, axis)
    return sum(parts[1:], parts[0])


def parts_of_ranks_join(p):
    for tp, config in ((2, {}), (4, dict(vocab_size=1000))):
        make('parts', 415, config=config)
        want = record(p, 'parts', 'run', '--arm', 'native-packed', '--tp', tp)
        p.ok('export', 'parts/run.tape', '-o', 'parts/ranks.safetensors', '--per-rank')
        ranks = read('parts/ranks.safetensors')[0]
        cut = 0
        for k, (dtype, w) in want.items():
            parts = [ranks[x][1] for x in (f'{k}.rank{r}' for r in range(tp)) if x in ranks] or [ranks[k][1]]
            cut += len(parts) > 1 and parts[0].shape != w.shape
            check(joined(parts, w).tobytes() == w.tobytes(), f'{tp} ranks: {k} is not its parts joined')
        check(cut > 0, 'no value was cut')


def numpy_reads_every_export(p):
    make('numpy', 416)
    want = record(p, 'numpy', 'run', '--arm', 'mirror')
    shutil.rmtree('numpy/folder', ignore_errors=True)
    p.ok('export', 'numpy/run.tape', '-o', 'numpy/run.npz')
    p.ok('export', 'numpy/run.tape', '-o', 'numpy/folder')
    z = np.load('numpy/run.npz')
    for k, (dtype, w) in want.items():
        for what, got in (('npz', z[k]), ('folder', np.load(f'numpy/folder/{k}.npy'))):
            check(got.shape == w.shape and got.dtype == w.dtype and got.tobytes() == w.tobytes(), f'{what}: {k} differs')


def named(name, function):
    function.__name__ = name
    return function


def cases(configs, weights, taps, seed, runs=RUNS):
    return ([named(n, config_case(n, seed + i, runs, *c)) for i, (n, c) in enumerate(configs.items())] +
            [named(n, weights_case(n, seed + 100 + i, kw)) for i, (n, kw) in enumerate(weights.items())] +
            [named(n, taps_case(n, seed + 200 + i, f)) for i, (n, f) in enumerate(taps.items())])


if __name__ == '__main__':
    tests = cases(CONFIGS, WEIGHTS, TAPS, 1000) + [
        late_prompts_and_odd_numbers_hold, fused_late_prompts_hold, modes_and_threads_change_no_bit,
        f64_sums_make_packed_and_expanded_mirror64, exports_come_back_as_the_tape, replays_give_the_tape,
        another_order_of_sums_is_seen, parts_of_ranks_join, numpy_reads_every_export]
    if 'long' in sys.argv[2:]:
        sys.argv.remove('long')
        tests += cases(LONG_CONFIGS, LONG_WEIGHTS, {}, 2000, EVERY_RUN)
    main(tests)
