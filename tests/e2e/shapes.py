"""The engine against the oracle on shapes, weights and traffic that the presets do not have: shapes.py BINARY [long] [TEST ...]

Every case is a checkpoint and a script made here from a seed; the oracle is generic in the config. What is demanded is what
golden.py demands: mirror64 bit-equal to the oracle, every other arm and rank count equal in its drafts. `long` adds the cases that
the registered test has no time for."""
import json, os, shutil, sys
import numpy as np
from golden import drafts_agree, same_as_oracle
from lib import Product, as_float, check, golden, main, read
from oracle import bf16_bits, bf16_f32, st_write

CONFIG = dict(vocab_size=600, dim=128, moe_inter_dim=128, n_layers=40, n_mtp_layers=2, dspark_block_size=5,
              dspark_noise_token_id=123, dspark_target_layer_ids=[37, 38, 39], dspark_markov_rank=16,
              dspark_n_routed_experts=6, dspark_n_activated_experts=3, n_heads=4, score_func='sqrtsoftplus', route_scale=1.5,
              swiglu_limit=10.0, q_lora_rank=64, head_dim=32, rope_head_dim=16, norm_eps=1e-20, o_groups=4, o_lora_rank=32,
              window_size=16, rope_theta=10000, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, dtype='fp8',
              expert_dtype='fp4')
TAPS_MAX = 280576.0


# ---- checkpoints ----

def bf16(a):
    return ('BF16', bf16_bits(np.asarray(a, np.float32)))


def f32(a):
    return ('F32', np.asarray(a, np.float32))


def put_fp8(t, g, name, n, k, std):
    """Codes of either sign without NaN, scales around the one that gives the weights about std."""
    codes = g.integers(0x20, 0x70, (n, k)) | g.integers(0, 2, (n, k)) << 7  # magnitudes 2^-3 .. 2^7, mostly near their middle
    middle = int(round(np.log2(std / 20)))
    t[name + '.weight'] = ('F8_E4M3', codes.astype(np.uint8))
    t[name + '.scale'] = ('F8_E8M0', (g.integers(-1, 2, ((n + 31) // 32, (k + 31) // 32)) + middle + 127).astype(np.uint8))


def put_fp4(t, g, name, n, k, std):
    t[name + '.weight'] = ('I8', g.integers(0, 256, (n, k // 2)).astype(np.uint8))
    middle = int(round(np.log2(std / 2.5)))
    t[name + '.scale'] = ('F8_E8M0', (g.integers(-1, 2, (n, k // 32)) + middle + 127).astype(np.uint8))


def put_stage(t, g, c, stage):
    m, dim, inter, heads, hd = f'mtp.{stage}.', c['dim'], c['moe_inter_dim'], c['n_heads'], c['head_dim']
    q, lora, experts, hc = c['q_lora_rank'], c['o_groups'] * c['o_lora_rank'], c['dspark_n_routed_experts'], c['hc_mult']
    group = heads * hd // c['o_groups']
    for name, n, k in (('wq_a', q, dim), ('wq_b', heads * hd, q), ('wkv', hd, dim), ('wo_a', lora, group), ('wo_b', dim, lora)):
        put_fp8(t, g, m + 'attn.' + name, n, k, k ** -.5)
    for name, n in (('attn.q_norm', q), ('attn.kv_norm', hd), ('attn_norm', dim), ('ffn_norm', dim)):
        t[m + name + '.weight'] = bf16(1 + .2 * g.standard_normal(n))
    t[m + 'attn.attn_sink'] = f32(g.standard_normal(heads))
    t[m + 'ffn.gate.weight'] = bf16(g.standard_normal((experts, dim)) * dim ** -.5)
    for name in ('bias', 'bias_vl'):
        t[m + 'ffn.gate.' + name] = f32(.1 * g.standard_normal(experts))
    for name, n, k in (('w1', inter, dim), ('w3', inter, dim), ('w2', dim, inter)):
        std = (4 if k == dim else 1) * k ** -.5
        for e in range(experts):
            put_fp4(t, g, f'{m}ffn.experts.{e}.{name}', n, k, std)
        put_fp8(t, g, f'{m}ffn.shared_experts.{name}', n, k, std)
    for name in ('hc_attn', 'hc_ffn'):
        mixes = (2 + hc) * hc
        t[m + name + '_fn'] = f32(g.standard_normal((mixes, hc * dim)) * (hc * dim) ** -.5)
        t[m + name + '_base'], t[m + name + '_scale'] = f32(.5 * g.standard_normal(mixes)), f32(.6 + .1 * g.standard_normal(3))


def make_tensors(c, g):
    t, dim, vocab, rank, last = {}, c['dim'], c['vocab_size'], c['dspark_markov_rank'], f'mtp.{c["n_mtp_layers"] - 1}.'
    n_taps = len(c['dspark_target_layer_ids'])
    t['embed.weight'], t['head.weight'] = bf16(g.standard_normal((vocab, dim))), bf16(.2 * g.standard_normal((vocab, dim)))
    for stage in range(c['n_mtp_layers']):
        put_stage(t, g, c, stage)
    put_fp8(t, g, 'mtp.0.main_proj', dim, n_taps * dim, (n_taps * dim) ** -.5)
    t['mtp.0.main_norm.weight'] = bf16(.05 + .01 * g.standard_normal(dim))
    t[last + 'norm.weight'] = bf16(1 + .2 * g.standard_normal(dim))
    t[last + 'markov_head.embed.weight'] = bf16(g.standard_normal((vocab, rank)))
    t[last + 'markov_head.head.weight'] = bf16(.3 * g.standard_normal((vocab, rank)))
    t[last + 'confidence_head.proj.weight'] = bf16(.05 * g.standard_normal((1, dim + rank)))
    return t


def write_checkpoint(folder, c, t):
    os.makedirs(folder, exist_ok=True)
    names = sorted(t)
    shards = {'a.safetensors': names[::2], 'b.safetensors': names[1::2]}
    for shard, part in shards.items():
        st_write(os.path.join(folder, shard), {n: t[n] for n in part})
    index = {'weight_map': {n: shard for shard, part in shards.items() for n in part}}
    for name, content in (('config.json', c), ('model.safetensors.index.json', index)):
        with open(os.path.join(folder, name), 'w') as f:
            json.dump(content, f)


# ---- traffic ----

class Script:
    """Rounds of a script; positions follow by themselves from a slot's first on."""

    def __init__(self, c, g, taps=None):
        self.c, self.g, self.t, self.next = c, g, {}, {}
        self.width = c['dim'] * len(c['dspark_target_layer_ids'])
        self.taps = taps or self.outliers
        self.loud = g.choice(self.width, 4, replace=False)

    def outliers(self, rows):
        v = self.g.standard_normal((rows, self.width)) * 30
        v[:, self.loud] *= 10 ** self.g.uniform(1, 3.9, 4)
        return np.clip(v, -TAPS_MAX, TAPS_MAX)

    def insert(self, r, slot, rows, at=None):
        first = self.next.get(slot, 0) if at is None else at
        self.t[f'round.{r}.insert.{slot}.taps'] = bf16(self.taps(rows))
        self.t[f'round.{r}.insert.{slot}.pos'] = ('I32', np.arange(first, first + rows, dtype=np.int32))
        self.next[slot] = first + rows

    def draft(self, r, slots, n_out=None, anchors=None):
        ints = lambda v: ('I32', np.array(v, np.int32))  # noqa: E731
        self.t[f'round.{r}.draft.slots'] = ints(slots)
        self.t[f'round.{r}.draft.anchor'] = ints(self.g.integers(0, self.c['vocab_size'], len(slots)) if anchors is None else anchors)
        self.t[f'round.{r}.draft.pos'] = ints([self.next[s] - 1 for s in slots])
        self.t[f'round.{r}.draft.n_out'] = ints([n_out or self.c['dspark_block_size']])

    def write(self, path):
        st_write(path, self.t, {'format': 'sparktape-script-1'})


def edges(s):
    """An almost empty window, one row short of full, exactly full, wrapped, and three slots of which one has a long prompt."""
    w = s.c['window_size']
    s.insert(0, 0, 1)
    s.draft(0, [0])
    if w > 2:
        s.insert(1, 1, w - 1)
        s.draft(1, [1, 0])
        s.insert(2, 1, 1)
    else:
        s.insert(2, 1, w)
    s.insert(2, 2, 3 * w // 2 + 7)
    s.draft(2, [1, 2, 0], n_out=1)
    s.insert(3, 1, 3)
    s.insert(3, 0, 2)
    s.draft(3, [0, 2, 1])


def far(s):
    """Prompts that start late, slots of large numbers in any order, numbers of rounds with gaps, rounds of one kind only."""
    w, big = s.c['window_size'], 1000000
    s.insert(3, big, w + 2, at=5000)
    s.insert(3, 7, 2)
    s.draft(3, [big, 7])
    s.insert(8, 2, 1000)
    s.insert(8, 0, w, at=300000 - w)
    s.draft(21, [0, big, 2, 7])
    s.draft(22, [7], n_out=2)
    s.insert(40, 7, 3)
    s.insert(1000, 7, 3 * w)
    s.insert(1000, big, 1)
    s.draft(1000, [2, 7, big, 0], anchors=[0, s.c['vocab_size'] - 1, s.c['dspark_noise_token_id'], 1])
    s.draft(2000000000, [0])


# ---- holding a case ----

RUNS = [('mirror', 1), ('native-packed', 1), ('native-expanded', 1), ('native-hybrid', 1), ('native-packed', 2),
        ('native-expanded', 2), ('native-hybrid', 2), ('native-packed', 4), ('native-expanded', 4)]


def record(p, folder, name, *options):
    """Records the folder's script and returns the joined export."""
    tape, out = f'{folder}/{name}.tape', f'{folder}/{name}.safetensors'
    p.ok('record', folder, '--script', f'{folder}/script.safetensors', '-o', tape, '--level', 'deep', *options)
    p.ok('export', tape, '-o', out)
    return read(out)[0]


def make(folder, seed, config=None, weights=None, taps=None, traffic=edges):
    """weights(c, t, g) may change the tensors before they are written; taps(g, rows, width) makes rows of taps."""
    c, g = dict(CONFIG, **(config or {})), np.random.default_rng(seed)
    shutil.rmtree(folder, ignore_errors=True)
    t = make_tensors(c, g)
    if weights:
        weights(c, t, g)
    write_checkpoint(folder, c, t)
    script = Script(c, g, taps and (lambda rows: taps(g, rows, script.width)))
    traffic(script)
    script.write(f'{folder}/script.safetensors')
    return c


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


def hold(p, folder, seed, tps=(1, 2), combine='exact', arms=True, **kw):
    make(folder, seed, **kw)
    want = golden(folder, f'{folder}/script.safetensors', combine)
    got = record(p, folder, 'mirror64', '--arm', 'mirror64', '--combine', combine)
    same_as_oracle(want, got, f'{folder} mirror64')
    unequal(want, got, folder)
    check(np.isfinite(as_float(want[next(k for k in want if k.endswith('head.logits'))])).all(), f'{folder}: logits are not finite')
    for arm, tp in RUNS if arms else []:
        if tp in tps:
            name = f'{arm}-tp{tp}'
            drafts_agree(want, record(p, folder, name, '--arm', arm, '--tp', tp, '--combine', combine), f'{folder} {name}')
    return want
