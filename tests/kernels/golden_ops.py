#!/usr/bin/env python3
"""Makes golden_ops.h: hashes of what the primitives give in the F64 mode, computed with numpy.

usage: golden_ops.py > golden_ops.h
An independent program: it shares no code with the twins. Sums are in double and rounded to f32 once, in numpy's own order,
so that a golden holds only where no sum lies on a rounding boundary; with these inputs none does.
"""
import numpy as np

F32, F64, U64 = np.float32, np.float64, np.uint64


def inputs(seed, n, scale):  # check.h's input_f32
    z = U64(seed) * U64(0x9E3779B97F4A7C15) + np.arange(1, n + 1, dtype=U64)
    z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    z ^= z >> U64(31)
    v = ((z >> U64(40)).astype(np.int64) - (1 << 23)).astype(F32) / F32(1 << 23)
    return (v * F32(scale)).astype(F32)


def bf16_bits(x):
    u = np.asarray(x, F32).view(np.uint32)
    r = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where((u & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), r)


def bf16(x):
    return (bf16_bits(x).astype(np.uint32) << 16).view(F32)


def rounded(fn, x):
    return fn(np.asarray(x, F64)).astype(F32)


def fnv1a(a):
    h = 0xCBF29CE484222325
    for b in np.ascontiguousarray(a).tobytes():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def act_qdq(x):
    code = np.arange(127)
    grid = np.where(code < 8, (code & 7) * 2.0**-9, (1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 7.0))
    out = []
    for g in x.reshape(-1, 32):
        t = F32(max(np.abs(g).max(), F32(1e-4)) * F32(1.0 / 448.0))
        m, e = np.frexp(t)  # m in [0.5, 1)
        scale = 2.0 ** (e - 1 if m == 0.5 else e)
        v = np.clip(g.astype(F64) / scale, -448, 448)
        d = np.abs(np.abs(v)[:, None] - grid[None])
        near = [min(np.flatnonzero(r == r.min()), key=lambda c: c & 1) for r in d]
        out.append(bf16(np.copysign(grid[near], v) * scale))
    return np.concatenate(out)


def inv_rms(x, eps):
    mean = (x.astype(F64) ** 2).mean(-1, keepdims=True).astype(F32)
    return (1.0 / np.sqrt((mean + F32(eps)).astype(F64))).astype(F32)


def rope(x, pos, rope_dim, theta, inverse):
    e = (np.arange(0, rope_dim, 2, dtype=F32) / F32(rope_dim)).astype(F64)
    freq = (F32(1) / np.power(F64(theta), e).astype(F32)).astype(F32)
    angle = (np.asarray(pos, F32)[:, None, None] * freq).astype(F32)
    c, s = rounded(np.cos, angle).astype(F64), rounded(np.sin, angle).astype(F64)
    s = -s if inverse else s
    y = x.copy()
    a, b = x[..., -rope_dim::2].astype(F64), x[..., -rope_dim + 1 :: 2].astype(F64)
    y[..., -rope_dim::2], y[..., -rope_dim + 1 :: 2] = (a * c - b * s).astype(F32), (a * s + b * c).astype(F32)
    return bf16(y)


def sigmoid(x):
    return (F32(1) / (F32(1) + rounded(np.exp, -x))).astype(F32)


def mixes(x, dots, base, scale, norm_eps, hc_eps, iters):
    T, hc, _ = x.shape
    eps = F32(hc_eps)
    m = (dots * inv_rms(x.reshape(T, -1), norm_eps)).astype(F32)
    z = lambda a, b, i: ((m[:, a:b] * scale[i]).astype(F32) + base[a:b]).astype(F32)
    pre = (sigmoid(z(0, hc, 0)) + eps).astype(F32)
    post = (F32(2) * sigmoid(z(hc, 2 * hc, 1))).astype(F32)
    total = lambda a, axis: a.astype(F64).sum(axis, keepdims=True).astype(F32)
    c = z(2 * hc, None, 2).reshape(T, hc, hc)
    c = rounded(np.exp, c - c.max(-1, keepdims=True))
    c = (c / total(c, -1) + eps).astype(F32)
    c = (c / (total(c, -2) + eps)).astype(F32)
    for _ in range(iters - 1):
        c = (c / (total(c, -1) + eps)).astype(F32)
        c = (c / (total(c, -2) + eps)).astype(F32)
    return pre, post, c


def attention(q, keys, sink, scale):
    out = np.zeros_like(q)
    for t, h in np.ndindex(q.shape[:2]):
        m, l, acc = F32(-np.inf), F32(0), np.zeros(q.shape[2], F32)
        for first in range(0, len(keys), 64):
            k = keys[first : first + 64].astype(F64)
            s = ((k @ q[t, h].astype(F64)).astype(F32) * F32(scale)).astype(F32)
            m2 = max(m, s.max())
            c, p = rounded(np.exp, F32(m - m2)), rounded(np.exp, (s - m2).astype(F32))
            l = F32(F64(l) * F64(c) + p.astype(F64).sum())
            acc = ((acc * c).astype(F32).astype(F64) + bf16(p).astype(F64) @ k).astype(F32)
            m = m2
        l = F32(l + rounded(np.exp, F32(sink[h] - m)))
        out[t, h] = bf16((acc / l).astype(F32))
    return out


def gate(z, bias, k, route_scale):
    softplus = np.where(z > 20, z, rounded(np.log1p, rounded(np.exp, np.minimum(z, 20))))
    scores = np.sqrt(softplus.astype(F32))
    ids = np.argsort(-(scores + bias).astype(F32), axis=1, kind="stable")[:, :k].astype(np.int32)
    w = np.take_along_axis(scores, ids, 1)
    w = (w / (w.astype(F64).sum(1, keepdims=True).astype(F32) + F32(1e-20))).astype(F32)
    return scores, ids, (w * F32(route_scale)).astype(F32)


def swiglu(g, u, w, limit):
    u, g = np.clip(u, -F32(limit), F32(limit)), np.minimum(g, F32(limit))
    h = ((g / (F32(1) + rounded(np.exp, -g))).astype(F32) * u).astype(F32)
    return bf16((w[:, None] * h).astype(F32))


def main():
    print("/* Made by golden_ops.py. FNV-1a of the result's bytes, F64 mode; the inputs stand in the tests. */")
    print("#ifndef TESTS_KERNELS_GOLDEN_OPS_H\n#define TESTS_KERNELS_GOLDEN_OPS_H\n")
    show = lambda name, a: print("#define GOLDEN_%-15s 0x%016xu" % (name, fnv1a(a)))
    bits = lambda name, a: show(name, bf16_bits(a))
    bits("ACT_QDQ", act_qdq(bf16(inputs(1, 4096, 1) * np.repeat(np.exp2(np.arange(-64, 64) / 4.0), 32).astype(F32))))
    x, w = bf16(inputs(2, 3 * 320, 3)).reshape(3, 320), bf16(inputs(3, 320, 1))
    bits("RMSNORM", bf16((w * (x * inv_rms(x, 1e-20)).astype(F32)).astype(F32)))
    x = bf16(inputs(4, 4 * 3 * 96, 2)).reshape(4, 3, 96)
    bits("ROPE", rope(x, [0, 5, 131, 300000], 64, 10000.0, False))
    bits("ROPE_INVERSE", rope(x, [0, 5, 131, 300000], 64, 10000.0, True))
    x, y = bf16(inputs(5, 3 * 4 * 64, 2)).reshape(3, 4, 64), bf16(inputs(6, 3 * 64, 2)).reshape(3, 64)
    dots = inputs(7, 3 * 24, 6).reshape(3, 24)
    pre, post, comb = mixes(x, dots, inputs(8, 24, 1), inputs(9, 3, 2), 1e-20, 1e-6, 20)
    show("MHC_PRE", pre), show("MHC_POST", post), show("MHC_COMB", comb)
    bits("MHC_COLLAPSE", bf16((pre.astype(F64)[:, :, None] * x).sum(1).astype(F32)))
    mixed = np.einsum("tjk,tjd->tkd", comb.astype(F64), x.astype(F64)).astype(F32)
    bits("MHC_EXPAND", bf16(((post[:, :, None] * y[:, None, :]).astype(F32) + mixed).astype(F32)))
    q, keys = bf16(inputs(10, 5 * 2 * 64, 3)).reshape(5, 2, 64), bf16(inputs(11, 133 * 64, 2)).reshape(133, 64)
    bits("ATTENTION", attention(q, keys, inputs(12, 2, 4), 0.125))
    scores, ids, w = gate(inputs(13, 5 * 16, 25).reshape(5, 16), inputs(14, 16, 0.5), 3, 1.5)
    show("GATE_SCORES", scores), show("GATE_IDS", ids), show("GATE_WEIGHTS", w)
    g, u = bf16(inputs(15, 4 * 96, 20)).reshape(4, 96), bf16(inputs(16, 4 * 96, 20)).reshape(4, 96)
    bits("SWIGLU", swiglu(g, u, inputs(17, 4, 1), 10))
    h = bf16(inputs(18, 96 + 40, 4)).astype(F64) @ bf16(inputs(19, 96 + 40, 1)).astype(F64)
    show("CONFIDENCE", np.array([h]).astype(F32))
    print("\n#endif")


if __name__ == "__main__":
    np.seterr(over="ignore", invalid="ignore")
    main()
