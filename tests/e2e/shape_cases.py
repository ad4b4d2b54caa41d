"""Checkpoints, scripts and cases of shapes.py: every key of the config varied, weights and taps at their extremes.

make() writes a checkpoint and a script into a folder, from a seed; the oracle's own make_case.py has fixed shapes."""
import json, os, shutil
import numpy as np
import lib  # noqa: F401  puts the oracle on the path
from oracle import bf16_bits, bf16_f32, st_write

CONFIG = dict(vocab_size=600, dim=128, moe_inter_dim=128, n_layers=40, n_mtp_layers=2, dspark_block_size=5,
              dspark_noise_token_id=123, dspark_target_layer_ids=[37, 38, 39], dspark_markov_rank=16,
              dspark_n_routed_experts=6, dspark_n_activated_experts=3, n_heads=4, score_func='sqrtsoftplus',
              route_scale=1.5, swiglu_limit=10.0, q_lora_rank=64, head_dim=32, rope_head_dim=16, norm_eps=1e-20,
              o_groups=4, o_lora_rank=32, window_size=16, rope_theta=10000, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6,
              dtype='fp8', expert_dtype='fp4')
TAPS_MAX = 280576.0


# ---- checkpoints ----

def bf16(a):
    return ('BF16', bf16_bits(np.asarray(a, np.float32)))


def f32(a):
    return ('F32', np.asarray(a, np.float32))


def put_fp8(t, g, name, n, k, std):
    """Codes of either sign without NaN, scales around the one that gives the weights about std."""
    codes = g.integers(0x20, 0x70, (n, k)) | g.integers(0, 2, (n, k)) << 7  # magnitudes 2^-3 .. 2^7
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
    for name, n, k in (('wq_a', q, dim), ('wq_b', heads * hd, q), ('wkv', hd, dim), ('wo_a', lora, group),
                       ('wo_b', dim, lora)):
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
        t[m + name + '_base'] = f32(.5 * g.standard_normal(mixes))
        t[m + name + '_scale'] = f32(.6 + .1 * g.standard_normal(3))


def make_tensors(c, g):
    t, dim, vocab, rank, last = {}, c['dim'], c['vocab_size'], c['dspark_markov_rank'], f'mtp.{c["n_mtp_layers"] - 1}.'
    n_taps = len(c['dspark_target_layer_ids'])
    t['embed.weight'], t['head.weight'] = bf16(g.standard_normal((vocab, dim))), bf16(.07 * g.standard_normal((vocab, dim)))
    for stage in range(c['n_mtp_layers']):
        put_stage(t, g, c, stage)
    put_fp8(t, g, 'mtp.0.main_proj', dim, n_taps * dim, (n_taps * dim) ** -.5)
    t['mtp.0.main_norm.weight'] = bf16(.05 + .01 * g.standard_normal(dim))
    t[last + 'norm.weight'] = bf16(1 + .2 * g.standard_normal(dim))
    t[last + 'markov_head.embed.weight'] = bf16(g.standard_normal((vocab, rank)))
    t[last + 'markov_head.head.weight'] = bf16(.2 * g.standard_normal((vocab, rank)))
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
        if anchors is None:
            anchors = self.g.integers(0, self.c['vocab_size'], len(slots))
        self.t[f'round.{r}.draft.anchor'] = ints(anchors)
        self.t[f'round.{r}.draft.pos'] = ints([self.next[s] - 1 for s in slots])
        self.t[f'round.{r}.draft.n_out'] = ints([n_out or self.c['dspark_block_size']])

    def write(self, path):
        st_write(path, self.t, {'format': 'sparktape-script-1'})


def edges(s):
    """A window almost empty, one row short of full, exactly full, wrapped; three slots, one of a long prompt."""
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
    """Prompts that start late, large slot numbers in any order, gaps between rounds, rounds of one kind only."""
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


# ---- cases of config ----

def heads(n, groups, lora, hd=32):
    return dict(n_heads=n, o_groups=groups, o_lora_rank=lora, head_dim=hd, rope_head_dim=min(16, hd))


def experts(e, k):
    return dict(dspark_n_routed_experts=e, dspark_n_activated_experts=k)


CONFIGS = {
    # name: (ranks, config). The short list varies several keys at a time; LONG_CONFIGS one at a time.
    'window_1_one_stage_block_3': ((1, 2), dict(window_size=1, n_mtp_layers=1, dspark_block_size=3, hc_sinkhorn_iters=1,
                                                 **experts(4, 1))),
    'window_64_four_stages_block_7': ((1, 2), dict(window_size=64, n_mtp_layers=4, dspark_block_size=7, hc_mult=2,
                                                    **experts(40, 6))),
    'window_130_one_tap': ((1, 4), dict(window_size=130, dspark_target_layer_ids=[5], rope_head_dim=2, vocab_size=1000,
                                       norm_eps=1e-6, hc_sinkhorn_iters=3, route_scale=2.5, **experts(8, 4))),
    'four_taps_whole_rope': ((1, 2), dict(dspark_target_layer_ids=[0, 39, 7, 8], rope_head_dim=32, rope_theta=1e6,
                                          swiglu_limit=1.0, hc_eps=1e-3, q_lora_rank=32, route_scale=1, vocab_size=257,
                                          **experts(5, 2))),
    'narrow_groups': ((1, 2), heads(8, 4, 16, 64)),
}
LONG_CONFIGS = {
    'window_8': ((1, 2), dict(window_size=8)),
    'window_48': ((1, 2), dict(window_size=48)),
    'window_1': ((1, 2), dict(window_size=1)),
    'window_2': ((1, 2), dict(window_size=2)),
    'one_stage': ((1, 2), dict(n_mtp_layers=1)),
    'five_stages': ((), dict(n_mtp_layers=5)),  # the bar of drafts is made for 3: each stage amplifies the order's noise
    'block_1': ((1, 2), dict(dspark_block_size=1)),
    'block_3': ((1, 2), dict(dspark_block_size=3)),
    'block_16': ((1, 2), dict(dspark_block_size=16)),
    'one_expert': ((1, 2), experts(1, 1)),
    'all_experts': ((1, 2), experts(6, 6)),
    'many_experts': ((1, 2), experts(40, 6)),
    'experts_2_of_16': ((1, 2), experts(16, 2)),
    'hc_1': ((1, 2), dict(hc_mult=1)),
    'hc_2': ((1, 2), dict(hc_mult=2)),
    'hc_8': ((1, 2), dict(hc_mult=8)),
    'sinkhorn_1': ((1, 2), dict(hc_sinkhorn_iters=1)),
    'sinkhorn_3': ((1, 2), dict(hc_sinkhorn_iters=3)),
    'eps_1e-6': ((1, 2), dict(norm_eps=1e-6)),
    'hc_eps_0': ((1, 2), dict(hc_eps=0)),
    'hc_eps_0.1': ((1, 2), dict(hc_eps=0.1)),
    'route_scale_1': ((1, 2), dict(route_scale=1)),
    'route_scale_2.5': ((1, 2), dict(route_scale=2.5)),
    'limit_1': ((1, 2), dict(swiglu_limit=1)),
    'theta_1e6': ((1, 2), dict(rope_theta=1e6)),
    'theta_1': ((1, 2), dict(rope_theta=1)),
    'rope_2': ((1, 2), dict(rope_head_dim=2)),
    'rope_6': ((1, 2), dict(rope_head_dim=6)),
    'rope_whole': ((1, 2), dict(rope_head_dim=32)),
    'one_head': ((1,), heads(1, 1, 32)),
    'heads_2_groups_1': ((1,), heads(2, 1, 64)),
    'heads_4_groups_2': ((1,), heads(4, 2, 48, 96)),
    'heads_6_groups_3': ((1,), heads(6, 3, 32)),
    'heads_8_groups_8': ((1, 2, 4), dict(heads(8, 8, 32), vocab_size=1024)),
    'lora_8': ((1, ), heads(4, 4, 8)),
    'lora_24': ((1, ), heads(4, 4, 24)),
    'head_dim_256': ((1, 2), heads(4, 2, 64, 256)),
    'tap_1': ((1, 2), dict(dspark_target_layer_ids=[0])),
    'taps_2': ((1, 2), dict(dspark_target_layer_ids=[1, 2])),
    'taps_4': ((1, 2), dict(dspark_target_layer_ids=[4, 3, 2, 1])),
    'q_32': ((1, 2), dict(q_lora_rank=32)),
    'vocab_200': ((1,), dict(vocab_size=200)),
    'vocab_257': ((1, 2), dict(vocab_size=257)),
    'vocab_512': ((1, 2), dict(vocab_size=512)),
    'vocab_1021': ((1, 2, 4), dict(vocab_size=1021)),
    'rank_1': ((1, 2), dict(dspark_markov_rank=1)),
    'rank_33': ((1, 2), dict(dspark_markov_rank=33)),
    'dim_160_inter_96': ((1,), dict(dim=160, moe_inter_dim=96)),
    'dim_32': ((1, 2), dict(dim=32, moe_inter_dim=64)),
    'dim_288': ((1, 2), dict(dim=288, moe_inter_dim=192)),
}


# ---- cases of weights ----

def no_sink(c, t, g):
    for name in t:
        if name.endswith('attn_sink'):
            t[name] = f32(np.full(c['n_heads'], -np.inf))


def extreme_scales(c, t, g):
    """The ends of E8M0: 2^-127 over a row of blocks, 2^127 over one block of codes 0 and -0: sums stay finite."""
    for name in list(t):
        d, a = t[name]
        if d == 'F8_E8M0' and a.shape[0] > 1:
            a = a.copy()
            a[0] = 0
            a[1, 0] = 254
            t[name] = (d, a)
            wd, w = t[name[:-5] + 'weight']
            w = w.copy()
            if wd == 'I8':
                w[1, :16] = 0x80  # codes 0 and -0
            else:
                w[32:64, :32] = 0
                w[33:64, :32] = 0x80
            t[name[:-5] + 'weight'] = (wd, w)


def zero(*parts):
    def edit(c, t, g):
        for name, (d, a) in list(t.items()):
            if any(x in name for x in parts) and d != 'F8_E8M0':
                t[name] = (d, np.zeros_like(a))
    return edit


def ties(c, t, g):
    """Equal gate rows and biases; equal head and Markov rows, so that every maximum is met again across the cut."""
    last = f'mtp.{c["n_mtp_layers"] - 1}.'
    for name in t:
        d, a = t[name]
        if name.endswith('ffn.gate.weight'):
            t[name] = (d, a[np.arange(len(a)) % 2])
        elif name.endswith('gate.bias'):
            t[name] = (d, np.zeros_like(a))
        elif name in ('head.weight', last + 'markov_head.head.weight'):
            t[name] = (d, a[np.arange(len(a)) % 50 * 5])


def ties_at_the_cut(c, t, g):
    """Only rows 511 and 512 win, and they are equal: rank 0 must be believed."""
    last = f'mtp.{c["n_mtp_layers"] - 1}.'
    for name, (row, other) in {'head.weight': (1, 0), last + 'markov_head.head.weight': (0, 0)}.items():
        d, a = t[name]
        a = bf16_f32(a).copy()
        a[511] = a[512] = 40 * a[10]
        t[name] = bf16(a)


WEIGHTS = {
    'no_sink': dict(weights=no_sink),
    'extreme_scales': dict(weights=extreme_scales),
    'zero_experts': dict(weights=zero('experts.1.', 'experts.2.')),
    'zero_attention': dict(weights=zero('attn.wq_b', 'attn.wkv')),
    'ties': dict(weights=ties),
    'ties_at_the_cut': dict(weights=ties_at_the_cut, config=dict(vocab_size=1024)),
}
LONG_WEIGHTS = {
    'zero_head': dict(weights=zero('head.weight')),
    'zero_gate': dict(weights=zero('ffn.gate')),
    'zero_shared': dict(weights=zero('shared_experts')),
    'zero_hc': dict(weights=zero('hc_attn', 'hc_ffn')),
    'zero_main': dict(weights=zero('main_proj')),
    'zero_norms': dict(weights=zero('_norm.weight')),
    'zero_embed': dict(weights=zero('embed.weight')),
    'zero_all': dict(weights=zero('')),
    'zero_wo': dict(weights=zero('wo_a', 'wo_b')),
}


# ---- cases of taps ----

def zero_taps(g, rows, width):
    v = g.standard_normal((rows, width))
    v[::2] = 0
    v[1::2, 32:96] = 0
    return v


def scale_edge_taps(g, rows, width):
    """Every group's amax at 448 * 2^k or one bf16 step beside it, where the QDQ scale steps."""
    edge = bf16_f32((bf16_bits(448 * np.exp2(g.integers(-20, 9, (rows, width // 32)).astype(np.float32))).astype(int)
                     + g.integers(-1, 2, (rows, width // 32))).astype(np.uint16))
    v = g.uniform(-1, 1, (rows, width // 32, 32)) * edge[..., None]
    v[..., 7] = edge * g.choice([-1, 1], edge.shape)
    return v.reshape(rows, width)


def huge_taps(g, rows, width):
    """One a row: two could cancel to the last bit, and what is left then depends on the order even of float64 sums."""
    v = g.standard_normal((rows, width))
    v[np.arange(rows), g.integers(0, width, rows)] = 3e38 * g.choice([-1, 1], rows)
    return v


def tiny_taps(g, rows, width):
    """Denormals, values below the floor of the QDQ's amax, and zeros of both signs."""
    v = g.standard_normal((rows, width)) * 10.0 ** g.integers(-44, -3, (rows, width))
    v[:, ::5] = np.copysign(0, v[:, ::5])
    return v


TAPS = {'zero_taps': zero_taps, 'scale_edge_taps': scale_edge_taps, 'huge_taps': huge_taps, 'tiny_taps': tiny_taps}


# ---- one case ----

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
