"""admissible.py finds what it must and nothing else: planted.py BINARY [TEST ...]

Small recordings have no illegal element; a value changed by two ulps, or made with a rounding left out, has."""
import functools, re
import numpy as np
from admissible import Judge
from lib import as_float, case, check, main, oracle, read
from oracle import Oracle, bf, bf16_bits, dot, qdq, rms

SEED = 1


@functools.lru_cache(maxsize=None)
def checkpoint():
    case('tiny', SEED)
    return Oracle('tiny')


def recorded(p, *options):
    checkpoint()  # made before the first recording
    p.ok('record', 'tiny', '--script', 'tiny/script.safetensors', '-o', 'run.tape', '--level', 'deep', *options)
    p.ok('export', 'run.tape', '-o', 'run.safetensors')
    return read('run.safetensors')[0]


def every_op_is_admissible(p):
    for arm, tp in (('mirror64', 1), ('native-packed', 2), ('native-expanded', 1)):
        values = recorded(p, '--arm', arm, '--tp', tp)
        report = Judge(checkpoint(), values).run()
        report.print()
        check(not report.illegal(), f'{arm} on {tp} ranks: {report.examples[:3]}')
        flips = sum(row[1] for row in report.rows.values())
        check((flips == 0) == (arm == 'mirror64'), f'{arm}: {flips} elements are not those of float64 sums')


# ---- planted ----

def first_round(p):
    return {k: v for k, v in recorded(p, '--arm', 'mirror').items() if k.startswith('round.0.')}


def op_of(name):
    return 'window' if '.window.' in name else re.sub(r'^round\.0\.|insert\.\d+\.|\bs\d+\.', '', name)


def illegal_in(values, name, changed):
    """Illegal elements of name's op when its value, of stage 1 or of none, is replaced."""
    report = Judge(checkpoint(), {**values, name: (values[name][0], changed)}, stages=(1,)).run()
    return report.rows[op_of(name)][2]


def two_ulps_are_illegal(p):
    """In every value that an op makes: two bf16 ulps, or as much of an f32, on its largest element."""
    values = first_round(p)
    given, other_stage = re.compile(r'\.(taps|pos|slots|anchor|n_out)$'), re.compile(r'\bs[02](\.|$)')
    names = [k for k in values if not given.search(k) and not other_stage.search(k)]
    for name in names:
        dtype, a = values[name]
        changed = np.array(a)
        bits = changed.view(np.uint32 if dtype == 'F32' else a.dtype).reshape(-1)
        bits[np.abs(as_float(values[name])).argmax()] += {'BF16': 2, 'F32': 2 << 16, 'I32': 1}[dtype]
        check(illegal_in(values, name, changed), f'{name}: a change of its largest element passed')
    print(f'      {len(names)} values')


def without(values, o):
    """Values of the first insert and of stage 1, each with one rounding point left out: what is left out, name, value."""
    v, a, f = lambda name: as_float(values['round.0.' + name]), 'mtp.1.attn.', 'mtp.1.ffn.'  # noqa: E731
    pos, last = values['round.0.block_pos'][1], values['round.0.draft.pos'][1].tolist()
    norm, heads = v('s1.attn.norm'), v('s1.attn.q').shape
    projected = dot(v('insert.0.taps'), o.wdeq('mtp.0.main_proj'))
    yield 'QDQ of the taps', 'insert.0.main_x', rms(bf(projected), o.f('mtp.0.main_norm.weight'), o.eps)
    yield 'bf16 of wq_a', 's1.attn.qr', rms(dot(qdq(norm), o.wdeq(a + 'wq_a')), o.f(a + 'q_norm.weight'), o.eps)
    yield 'QDQ of qr', 's1.attn.q', o.rope(bf(dot(v('s1.attn.qr'), o.wdeq(a + 'wq_b'))).reshape(heads), pos)
    yield 'QDQ of kv', 's1.attn.kv', o.rope(rms(o.lin(norm, a + 'wkv'), o.f(a + 'kv_norm.weight'), o.eps), pos)
    yield 'QDQ of wo_b\'s input', 's1.attn_out', bf(dot(v('s1.attn.wo_a'), o.wdeq(a + 'wo_b')))
    yield 'bf16 of each expert', 's1.ffn_out', bf(v('s1.ffn.slot').sum(1) + v('s1.ffn.shared'))
    keep, oracle.bf = oracle.bf, lambda x: x
    try:
        o.state = {0: {1: {i: (i, row) for i, row in enumerate(v('window.0.s1'))}}}
        attended = keep(o.attend(v('s1.attn.q'), v('s1.attn.kv'), [0], last, 1))
        shared = o.expert(v('s1.ffn.norm'), f + 'shared_experts')[3]
    finally:
        oracle.bf = keep
    yield 'bf16 of p', 's1.attn.o', o.rope(attended, pos, True)
    yield 'bf16 of gate, up, h', 's1.ffn.shared', shared


def a_dropped_rounding_is_illegal(p):
    values = first_round(p)
    for what, name, changed in without(values, checkpoint()):
        dtype, _ = values['round.0.' + name]
        n = illegal_in(values, 'round.0.' + name, bf16_bits(changed) if dtype == 'BF16' else changed)
        check(n, f'{name} without {what} passed')
        print(f'      {name} without {what}: {n} of {changed.size} elements illegal')


if __name__ == '__main__':
    main([every_op_is_admissible, two_ulps_are_illegal, a_dropped_rounding_is_illegal])
