"""Is every value of a deep recording one that some order of f32 sums gives? Each op alone, on its captured inputs.

    admissible.py CHECKPOINT EXPORT ...

prints a table for each export (safetensors) of a `record --level deep --combine exact`. Exit 1 when an element is illegal.
planted.py is the test of this program.

An exact sum S of n products with A = sum |products| may come out anywhere in S +- 6 * 2^-24 * sqrt(n) * A; ops without long
sums have the bound that their kernel's header states. An element is `equal` (the bits that float64 sums give), `flip`
(another value that some point of the interval rounds to) or `illegal`. A value between two captured ones is hidden: it is
carried as the interval of bf16 values it may have had. distance, of flips: how far from the middle of its interval a value
must have been to round to the element, in halves of the interval; above 1 is illegal. scale: groups of 32 that flipped
together, because the interval of their largest element holds a step of the scale.

Nothing of the engine is used: inputs are the export's, weights the checkpoint's, arithmetic is the oracle's and this."""
import re, sys
import numpy as np
from lib import as_float, read
from oracle import Oracle, act_q, bf, bf16_f32, e4m3_rne, f32fn, product, qdq, rms

U, C, F32, F64 = 2.0 ** -24, 6.0, np.float32, np.float64
BF16, E4M3, POINT = (8, -126), (4, -6), None  # significant bits, least exponent; POINT: captured before any such rounding


def preimage(v, fmt):
    """The reals that round to v, ties included."""
    if fmt is POINT:
        return v, v
    bits, least = fmt
    a = np.abs(v)
    e = np.maximum(np.frexp(a)[1] - 1.0, least)
    step = np.exp2(e + 1 - bits)
    below = np.where((a == np.exp2(e)) & (e > least), step / 4, step / 2)  # finer under a power of two
    lo, hi = np.where(a == 0, -step / 2, a - below), a + step / 2
    if fmt is E4M3:
        hi = np.where(a == 448, np.inf, hi)
    return np.where(v < 0, -hi, lo), np.where(v < 0, -lo, hi)


def distances(got, lo, hi, fmt):
    """How far from the middle of [lo, hi] a value must be to round to got; 1 is the end of the interval."""
    a, b = preimage(got, fmt)
    middle, half = (lo + hi) / 2, (hi - lo) / 2
    with np.errstate(divide='ignore', invalid='ignore'):
        need = np.maximum(np.maximum(a - middle, middle - b), 0)
        return np.where(np.isnan(got), np.nan, np.where(need == 0, 0, need / half))


class Hidden:
    """bf16 values that the recording does not hold: in [lo, hi]; mid is what float64 sums give."""

    def __init__(self, mid, lo, hi):
        self.mid, self.lo, self.hi = mid, bf(lo.astype(F32)).astype(F64), bf(hi.astype(F32)).astype(F64)

    def reshape(self, *shape):
        return Hidden(*(x.reshape(shape) for x in (self.mid, self.lo, self.hi)))


def known(x):
    return Hidden(x, x, x)


def ends(f, xs, ys):
    """Least and greatest f(x, y) between the two ends of each; f is monotone in both over so small a range."""
    values = [f(x, y) for x in xs for y in ys]
    return np.minimum.reduce(values), np.maximum.reduce(values)


# Ops return (want, lo, hi): the bits of float64 sums, and the interval before the rounding to bf16.

def sums(x, w):
    """S and its bound."""
    x, w = x.astype(F64), w.astype(F64)
    return product(x, w), C * U * np.sqrt(w.shape[1]) * product(np.abs(x), np.abs(w))


def linear(x, w):
    s, d = sums(x, w)
    return bf(s.astype(F32)), s - d, s + d


def rmsnorm(x, w, eps):
    slack = (C * np.sqrt(len(w)) / 2 + 5) * U  # kernels/rmsnorm.h
    least = np.where(x.lo * x.hi <= 0, 0, np.minimum(x.lo ** 2, x.hi ** 2)).mean(-1, keepdims=True)
    most = np.maximum(x.lo ** 2, x.hi ** 2).mean(-1, keepdims=True)
    r = (most + eps) ** -.5 * (1 - slack), (least + eps) ** -.5 * (1 + slack)
    return rms(x.mid, w, eps), *ends(lambda x, r: w.astype(F64) * x * r, (x.lo, x.hi), r)


def swiglu(gate, up, weight, limit):
    """kernels/swiglu.h: 5 ulp of f32, an ulp being at most 2 u of the value."""
    g, u = np.minimum(gate.mid, F32(limit)), np.clip(up.mid, -F32(limit), F32(limit))
    want = bf((weight * ((g / (F32(1) + f32fn(np.exp, -g)).astype(F32)).astype(F32) * u).astype(F32)).astype(F32))
    silu = lambda g: g / (1 + np.exp(-g))  # noqa: E731
    lo, hi = ends(lambda g, u: silu(np.minimum(g, limit)) * np.clip(u, -limit, limit) * np.asarray(weight, F64),
                  (gate.lo, gate.hi), (up.lo, up.hi))
    return want, lo - 10 * U * np.abs(lo), hi + 10 * U * np.abs(hi)


class Report:
    def __init__(self):
        self.rows, self.examples = {}, []  # op: equal, flip, illegal, distance, scale

    def add(self, value, got, want, distance, scales=0):
        equal = got == want
        illegal = ~equal & ~(distance <= 1)  # NaN is illegal
        flip = ~equal & ~illegal
        row = self.rows.setdefault(re.sub(r'^round\.\d+\.|(insert|window)\.\d+\.|\bs\d+\.', '', value), [0, 0, 0, 0.0, 0])
        for i, n in enumerate((equal, flip, illegal)):
            row[i] += int(n.sum())
        row[3] = max(row[3], float(distance[flip].max(initial=0)))
        row[4] += scales
        for i in np.argwhere(illegal)[:3].tolist():
            self.examples.append(f'{value}{i}: got {got[tuple(i)]:.9g}, distance {distance[tuple(i)]:.3g}')

    def judge(self, value, got, want, lo, hi, fmt=BF16):
        self.add(value, got, want, distances(got.astype(F64), lo, hi, fmt))

    def exact(self, value, got, want):
        self.add(value, got, want, np.where(got == want, 0.0, np.inf))

    def quantised(self, value, got, h):
        """got = act_qdq(h): a group of 32 is judged under the scale that explains most of it."""
        g, lo, hi = (x.astype(F64).reshape(-1, 32) for x in (got, h.lo, h.hi))
        want, best = qdq(h.mid), np.full(g.shape, np.inf)
        least, most = np.maximum(np.maximum(lo, -hi), 0).max(1), np.maximum(-lo, hi).max(1)
        scales = [act_q(np.repeat(amax[:, None], 32, 1).astype(F32))[1].astype(F64) for amax in (least, most)]
        for s in scales:
            code = g / s
            on_grid = e4m3_rne(np.clip(code, -448, 448).astype(F32)) == code
            d = np.where(on_grid, distances(code, lo / s, hi / s, E4M3), np.inf)
            better = (d <= 1).sum(1) > (best <= 1).sum(1)
            best[better] = d[better]
        flipped = (scales[0] != scales[1]).ravel() & (g != want.reshape(-1, 32)).any(1)
        self.add(value, got, want, best.reshape(got.shape), int(flipped.sum()))

    def illegal(self):
        return any(row[2] for row in self.rows.values())

    def print(self):
        print(f'{"op":<16}{"equal":>10}{"flip":>9}{"illegal":>9}{"distance":>10}{"scale":>7}')
        for op, (equal, flip, illegal, distance, scales) in self.rows.items():
            print(f'{op:<16}{equal:>10}{flip:>9}{illegal:>9}{distance:>10.3f}{scales:>7}')
        for line in self.examples[:20]:
            print('ILLEGAL', line)


class Judge:
    """Judges an export; oracle has the checkpoint's weights. stages: those that are looked at, None: all."""

    def __init__(self, oracle, values, stages=None):
        self.o, self.values, self.rings, self.report = oracle, values, {}, Report()
        self.stages = range(oracle.ns) if stages is None else stages

    def v(self, name):
        """A captured value as numbers."""
        return self.values[name][1] if self.values[name][0] == 'I32' else as_float(self.values[name])

    def judge(self, name, want, lo, hi, fmt=BF16):
        self.report.judge(name, self.v(name), want, lo, hi, fmt)

    def exact(self, name, want):
        self.report.exact(name, self.v(name), want)

    def rope(self, x, pos, inverse=False):
        """kernels/rope.h. What is not rotated passes."""
        rd = self.o.rd
        exponent = (np.arange(0, rd, 2, dtype=F32) / F32(rd)).astype(F64)
        freq = (F32(1) / np.power(F64(self.o.c['rope_theta']), exponent).astype(F32)).astype(F32)
        angle = (np.asarray(pos, F32)[:, None] * freq).astype(F32)
        c, s = (f32fn(f, angle).astype(F64).reshape((len(pos),) + (1,) * (x.lo.ndim - 2) + (-1,)) for f in (np.cos, np.sin))
        s = -s if inverse else s
        lo, hi = x.lo.copy(), x.hi.copy()
        for first, k_re, k_im in ((-rd, c, -s), (-rd + 1, s, c)):
            terms = [(x.lo[..., at::2] * k, x.hi[..., at::2] * k) for at, k in ((-rd, k_re), (-rd + 1, k_im))]
            slack = 2 * U * sum(np.maximum(np.abs(a), np.abs(b)) for a, b in terms)
            lo[..., first::2] = sum(np.minimum(a, b) for a, b in terms) - slack
            hi[..., first::2] = sum(np.maximum(a, b) for a, b in terms) + slack
        return self.o.rope(x.mid, pos, inverse), lo, hi

    def norm_of(self, x, weight):
        return rmsnorm(x, self.o.f(weight + '.weight'), self.o.eps)

    def latent(self, name, x, pos, stage):
        a = f'mtp.{stage}.attn.'
        h = Hidden(*self.norm_of(Hidden(*linear(qdq(x), self.o.wdeq(a + 'wkv'))), a + 'kv_norm'))
        self.report.quantised(name, self.v(name), Hidden(*self.rope(h, pos)))

    def insert(self, key, slot):
        pos, main_x = self.v(key + 'pos'), self.v(key + 'main_x')
        h = Hidden(*linear(qdq(self.v(key + 'taps')), self.o.wdeq('mtp.0.main_proj')))
        self.judge(key + 'main_x', *self.norm_of(h, 'mtp.0.main_norm'))
        for s in range(self.o.ns):
            self.latent(f'{key}s{s}.main_kv', main_x, pos, s)
            ring = self.rings.setdefault((slot, s), np.zeros((self.o.W, self.o.hd), F32))
            for p, row in zip(pos, self.v(f'{key}s{s}.main_kv')):
                ring[p % self.o.W] = row

    def mixes(self, key, x, weights):
        o, hc, flat = self.o, self.o.hc, x.reshape(len(x), -1)
        dots, d = sums(flat, o.f(weights + '_fn'))
        scale = np.repeat(o.f(weights + '_scale').astype(F64), [hc, hc, hc * hc])
        r = ((flat.astype(F64) ** 2).mean(1, keepdims=True) + o.eps) ** -.5
        m = dots * r * scale
        dz = np.abs(m) * (C * np.sqrt(flat.shape[1]) / 2 + 5) * U + U * np.abs(m + o.f(weights + '_base'))
        dz += d * r * np.abs(scale)  # the dots are hidden: their own bound
        comb = np.expm1(2 * hc * dz[:, 2 * hc:].max(1))[:, None, None] + 2 * o.c['hc_sinkhorn_iters'] * (hc + 3) * U
        slack = dz[:, :hc] + 5 * U, dz[:, hc:2 * hc] + 5 * U, comb
        for name, want, rel in zip(('mix_pre', 'mix_post', 'mix_comb'), o.mixes(x, weights), slack):  # kernels/mhc.h
            self.judge(key + name, want, want * (1 - rel), want * (1 + rel), POINT)

    def collapse(self, name, x, pre):
        terms = pre.astype(F64)[:, :, None] * x
        s, d = terms.sum(1), self.o.hc * U * np.abs(terms).sum(1)
        self.judge(name, self.o.collapse(x, pre), s - d, s + d)

    def expand(self, name, y, x, post, comb):
        terms = np.einsum('tjk,tjd->jtkd', comb.astype(F64), x.astype(F64))
        terms = np.concatenate([terms, (post.astype(F64)[:, :, None] * y[:, None, :])[None]])
        s, d = terms.sum(0), (self.o.hc + 2) * U * np.abs(terms).sum(0)
        self.judge(name, self.o.expand(y, x, post, comb), s - d, s + d)

    def attend(self, q, keys, sink):
        """kernels/attention.h, one slot's block: acc / l and its bound."""
        scale, blocks = float(F32(F64(self.o.hd) ** -.5)), range(0, len(keys), 64)
        s = np.einsum('thd,nd->thn', q, keys) * scale
        size = np.einsum('thd,nd->thn', np.abs(q), np.abs(keys)) * scale
        ds = C * U * np.sqrt(self.o.hd) * size + U * np.abs(s) + 2 * U
        e, summed = 2 * ds.max(-1, keepdims=True), C * U * np.sqrt(len(keys)) + (2 * len(blocks) + 3) * U
        m, l, acc, bound, l_scored, scored = np.full(s.shape[:2] + (1,), -1e30), 0, 0, 0, 0, 0
        for i in blocks:
            v, m_next = keys[i:i + 64], np.maximum(m, s[..., i:i + 64].max(-1, keepdims=True))
            c, p = np.exp(m - m_next), np.exp(s[..., i:i + 64] - m_next)
            pb = bf(p.astype(F32)).astype(F64)
            a, b = preimage(pb, BF16)
            steps = np.where(np.minimum(p - a, b - p) <= e * p, b - a, 0)  # p so near a tie that pb may be its neighbour
            slack, wrong = summed * p + steps, (ds[..., i:i + 64] * p) ** 2
            l_scored, scored = l_scored * c ** 2 + wrong.sum(-1, keepdims=True), scored * c ** 2 + wrong @ v ** 2
            l, acc, bound, m = l * c + p.sum(-1, keepdims=True), acc * c + pb @ v, bound * c + slack @ np.abs(v), m_next
        l_error = np.sqrt(l_scored) + summed * l
        l = l + np.exp(sink.astype(F64)[:, None] - m)
        return acc / l, (bound + np.sqrt(scored) + np.abs(acc) / l * l_error) / l

    def attention(self, key, r, s, slots, last, pos):
        o, q, kv = self.o, self.v(key + 'attn.q'), self.v(key + 'attn.kv')
        out, bound = np.zeros(q.shape), np.zeros(q.shape)
        o.state = {}
        for b, (slot, p) in enumerate(zip(slots, last)):
            window, rows = f'{r}window.{slot}.s{s}', slice(b * o.blk, (b + 1) * o.blk)
            self.report.exact(r + 'window', self.v(window), self.rings[slot, s][:min(o.W, p + 1)])
            o.state[slot] = {s: {i: (i, row) for i, row in enumerate(self.v(window))}}
            keys = np.concatenate([self.v(window), kv[rows]]).astype(F64)
            out[rows], bound[rows] = self.attend(q[rows].astype(F64), keys, o.f(f'mtp.{s}.attn.attn_sink'))
        h = Hidden(o.attend(q, kv, slots, last, s), out - bound, out + bound)
        self.judge(key + 'attn.o', *self.rope(h, pos, True))

    def shared(self, name, x, prefix):
        """gate, up and h of the shared expert are hidden: is there a choice of them, row by row, that explains the sums?

        Only the few elements matter whose code depends on the choice, and which one was taken shows in all the row's sums:
        the choices are toggled one at a time as long as that brings the sums nearer."""
        got, w = self.v(name).astype(F64), self.o.wdeq(prefix + '.w2')
        gate, up = (Hidden(*linear(qdq(x), self.o.wdeq(prefix + n))) for n in ('.w1', '.w3'))
        h = Hidden(*swiglu(gate, up, F32(1), self.o.c['swiglu_limit']))
        exact, d = sums(qdq(h.mid), w)
        best = exact.copy()
        for t in range(len(got)):
            changes = self.choices(h.mid[t], h.lo[t], h.hi[t]) @ w.T
            while len(changes):
                miss = ((got[t] - best[t] - changes) ** 2).sum(1)
                i = miss.argmin()
                if not miss[i] < ((got[t] - best[t]) ** 2).sum():
                    break
                best[t] += changes[i]
                changes[i] *= -1  # the next toggle gives it back
        self.judge(name, exact.astype(F32), best - d, best + d, POINT)

    @staticmethod
    def choices(mid, lo, hi):
        """Changes of the quantised row, one for each other value that an element may have had."""
        at = np.nonzero(lo != hi)[0]
        rows = np.repeat(mid[None], 2 * len(at), 0)
        rows[np.arange(len(rows)), np.tile(at, 2)] = np.concatenate([lo[at], hi[at]])
        changes = qdq(rows).astype(F64) - qdq(mid[None])
        return changes[changes.any(1)]

    def routed(self, key, ids, xq, prefix):
        """gate, up and slot, expert by expert, gathered to be judged as the values they are."""
        h = qdq(self.v(key + 'h'))
        out = {n: [np.zeros(self.v(key + n).shape, t) for t in (F32, F64, F64)] for n in ('gate', 'up', 'slot')}
        for e in np.unique(ids):
            row, pick = np.nonzero(ids == e)
            for name, x, w in (('gate', xq[row], 'w1'), ('up', xq[row], 'w3'), ('slot', h[row, pick], 'w2')):
                s, d = sums(x, self.o.wdeq(f'{prefix}experts.{e}.{w}'))
                for to, v in zip(out[name], (s.astype(F32), s - d, s + d)):
                    to[row, pick] = v
        for name, (want, lo, hi) in out.items():
            self.judge(key + name, *((want, lo, hi, POINT) if name == 'slot' else (bf(want), lo, hi)))

    def moe(self, key, x, prefix):
        o, v = self.o, lambda name: self.v(key + name)
        z, dz = sums(x, o.f(prefix + 'gate.weight'))  # hidden; kernels/gate.h from there
        softplus = lambda z, log1p, exp: np.where(z > 20, z, log1p(exp(np.minimum(z, 30))))  # noqa: E731
        exact, rel = np.sqrt(softplus(z, np.log1p, np.exp)), dz / 2 + 3 * U
        rounded = softplus(z.astype(F32), lambda a: f32fn(np.log1p, a), lambda a: f32fn(np.exp, a)).astype(F32)
        self.judge(key + 'scores', np.sqrt(rounded), exact * (1 - rel), exact * (1 + rel), POINT)
        scores, ids, weights = v('scores'), v('ids'), v('weights')
        chosen = (scores + o.f(prefix + 'gate.bias')).astype(F32)
        self.exact(key + 'ids', np.argsort(-chosen, axis=1, kind='stable')[:, :o.K])
        best = np.take_along_axis(scores, ids, 1)
        total, scale = best.astype(F64).sum(1, keepdims=True), o.c['route_scale']
        want = (best / (total.astype(F32) + F32(1e-20)).astype(F32)).astype(F32) * F32(scale)
        exact, rel = best / total * scale, (o.K + 3) * U
        self.judge(key + 'weights', want, exact * (1 - rel), exact * (1 + rel), POINT)
        self.routed(key, ids, qdq(x), prefix)
        self.judge(key + 'h', *swiglu(known(v('gate')), known(v('up')), weights[:, :, None], o.c['swiglu_limit']))
        self.shared(key + 'shared', x, prefix + 'shared_experts')

    def combined(self, key):
        """kernels/combine.h, exact."""
        slot, y = self.v(key + 'ffn.slot'), F32(0)
        for k in np.argsort(self.v(key + 'ffn.ids'), axis=1, kind='stable').T:
            y = (y + bf(slot[np.arange(len(slot)), k])).astype(F32)
        return bf((y + bf(self.v(key + 'ffn.shared'))).astype(F32))

    def stage(self, key, r, s, x, pre, slots, last, pos):
        o, m, a, v = self.o, f'mtp.{s}.', f'mtp.{s}.attn.', lambda name: self.v(key + name)
        self.mixes(key + 'attn.', x, m + 'hc_attn')
        self.collapse(key + 'attn.collapse', x, pre)
        self.judge(key + 'attn.norm', *self.norm_of(known(v('attn.collapse')), m + 'attn_norm'))
        h = Hidden(*linear(qdq(v('attn.norm')), o.wdeq(a + 'wq_a')))
        self.judge(key + 'attn.qr', *self.norm_of(h, a + 'q_norm'))
        h = Hidden(*linear(qdq(v('attn.qr')), o.wdeq(a + 'wq_b'))).reshape(len(x), o.H, o.hd)
        self.judge(key + 'attn.q', *self.rope(h, pos))
        self.latent(key + 'attn.kv', v('attn.norm'), pos, s)
        self.attention(key, r, s, slots, last, pos)
        self.exact(key + 'attn.o_qdq', qdq(v('attn.o')))
        groups, w = v('attn.o_qdq').reshape(len(x), o.G, -1), np.split(o.wdeq(a + 'wo_a'), o.G)
        parts = [linear(groups[:, g], w[g]) for g in range(o.G)]
        self.judge(key + 'attn.wo_a', *(np.concatenate(p, 1) for p in zip(*parts)))
        self.judge(key + 'attn_out', *linear(qdq(v('attn.wo_a')), o.wdeq(a + 'wo_b')))
        self.expand(key + 'attn.stream', v('attn_out'), x, v('attn.mix_post'), v('attn.mix_comb'))
        self.mixes(key + 'ffn.', v('attn.stream'), m + 'hc_ffn')
        self.collapse(key + 'ffn.collapse', v('attn.stream'), v('attn.mix_pre'))
        self.judge(key + 'ffn.norm', *self.norm_of(known(v('ffn.collapse')), m + 'ffn_norm'))
        self.moe(key + 'ffn.', v('ffn.norm'), m + 'ffn.')
        self.exact(key + 'ffn_out', self.combined(key))
        self.expand(key + 'out', v('ffn_out'), v('attn.stream'), v('ffn.mix_post'), v('ffn.mix_comb'))
        return v('out'), v('ffn.mix_pre')

    def head(self, r, x, pre, anchor):
        o, m, v = self.o, f'mtp.{self.o.ns - 1}.', lambda name: self.v(r + name)
        self.collapse(r + 'head.collapse', x, pre)
        self.judge(r + 'head.norm', *self.norm_of(known(v('head.collapse')), m + 'norm'))
        s, d = sums(v('head.norm'), o.f('head.weight'))
        self.judge(r + 'head.logits', s.astype(F32), s - d, s + d, POINT)
        drafts = v('drafts')
        of_position = lambda a: a.reshape(len(drafts), o.blk, -1)[:, :drafts.shape[1]]  # noqa: E731
        markov = o.f(m + 'markov_head.embed.weight')[np.concatenate([np.array(anchor)[:, None], drafts[:, :-1]], 1)]
        s, d = sums(markov, o.f(m + 'markov_head.head.weight'))
        base = of_position(v('head.logits'))
        d += U * (np.abs(base + s) + d)
        self.judge(r + 'head.biased', (base + s.astype(F32)).astype(F32), base + s - d, base + s + d, POINT)
        self.exact(r + 'drafts', v('head.biased').argmax(-1))
        s, d = sums(np.concatenate([of_position(v('head.collapse')), markov], -1), o.f(m + 'confidence_head.proj.weight'))
        s, d = s[..., 0], d[..., 0]
        self.judge(r + 'confidence', s.astype(F32), s - d, s + d, POINT)

    def draft(self, r):
        o, (slots, last, anchor) = self.o, (self.v(f'{r}draft.{n}').tolist() for n in ('slots', 'pos', 'anchor'))
        ids = np.full((len(slots), o.blk), o.c['dspark_noise_token_id'])
        ids[:, 0] = anchor
        pos = np.concatenate([np.arange(p + 1, p + 1 + o.blk) for p in last])
        x = np.repeat(bf16_f32(o.raw('embed.weight')[ids.ravel()])[:, None], o.hc, 1)
        for name, want in (('ids', ids.ravel()), ('block_pos', pos), ('x0', x)):
            self.exact(r + name, want)
        pre = np.eye(1, o.hc, dtype=F32).repeat(len(x), 0)  # one-hot on copy 0
        for s in range(o.ns):
            if s in self.stages:
                x, pre = self.stage(f'{r}s{s}.', r, s, x, pre, slots, last, pos)
            else:
                x, pre = self.v(f'{r}s{s}.out'), self.v(f'{r}s{s}.ffn.mix_pre')
        self.head(r, x, pre, anchor)

    def run(self):
        for r in (f'round.{n}.' for n in sorted({int(k.split('.')[1]) for k in self.values})):
            for k in sorted(k for k in self.values if k.startswith(r + 'insert.') and k.endswith('.taps')):
                self.insert(k[:-4], int(k.split('.')[3]))
            if r + 'draft.slots' in self.values:
                self.draft(r)
        return self.report


def main(checkpoint, exports):
    oracle, failed = Oracle(checkpoint), not exports
    for path in exports:
        report = Judge(oracle, read(path)[0]).run()
        print(path)
        report.print()
        failed |= report.illegal() or not report.rows
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1], sys.argv[2:]))
