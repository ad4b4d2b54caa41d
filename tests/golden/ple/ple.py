#!/usr/bin/env python3
"""float64 oracle of the PLE block (kernels/ple.h). An independent program: it shares no code with the twins.

usage: ple.py                             makes the goldens beside it again
       ple.py OUT.safetensors T SEED N HC makes one
Inputs   resid [T, HC, N], ye [10 * T, N], plan int32 [532 + 10 * T], ysh [T, N], gs [T], g [T, HC], key [T, HC, N],
         value [T, N], w_query, w_conv [HC, N], all f32
Outputs  resid_out, norm_w [T, HC, N], gate [T, HC], y (gnorm of resid_out by w_query), all float64
"""
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'oracle'))
from oracle import st_write  # noqa: E402

TOP_K, P_TOKENT, EPS = 10, 532, 1e-6
# T, seed, N, HC: less than a round of the 256 lanes, and more
GOLDENS = [(1, 1, 96, 4), (3, 2, 160, 2), (1, 3, 300, 2)]


def gnorm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def inputs(T, seed, n, hc):
    r = np.random.default_rng(seed)

    def normal(*shape):
        return r.standard_normal(shape).astype(np.float32)

    plan = np.full(P_TOKENT + TOP_K * T, -1, np.int32)
    plan[P_TOKENT:] = r.permutation(TOP_K * T)
    return plan, {k: v.astype(np.float32) for k, v in dict(
        resid=normal(T, hc, n), ye=normal(TOP_K * T, n) * np.float32(.3), ysh=normal(T, n), gs=1 / (1 + np.exp(-normal(T))),
        g=2 / (1 + np.exp(-normal(T, hc))), key=normal(T, hc, n), value=normal(T, n),
        w_query=1 + normal(hc, n) * np.float32(.1), w_conv=1 + normal(hc, n) * np.float32(.1)).items()}


def outputs(plan, f32):
    i = {k: v.astype(np.float64) for k, v in f32.items()}
    T, hc, n = i['resid'].shape
    s = i['ye'][plan[P_TOKENT:].reshape(T, TOP_K)].sum(1)
    m = i['gs'][:, None] * i['ysh'] + s
    resid = m[:, None, :] * i['g'][:, :, None] + i['resid']
    query = gnorm(resid, i['w_query'])
    a = (i['key'] * query).sum(-1) / np.sqrt(n)
    gate = 1 / (1 + np.exp(-np.sign(a) * np.sqrt(np.maximum(np.abs(a), 1e-6))))
    gated = gate[:, :, None] * i['value'][:, None, :]
    return dict(resid_out=resid, norm_w=gnorm(gated, i['w_conv']), gate=gate, y=query)


def write(path, T, seed, n, hc):
    plan, f32 = inputs(T, seed, n, hc)
    tensors = {k: ('F32', v) for k, v in f32.items()}
    tensors['plan'] = ('I32', plan)
    tensors.update({k: ('F64', v) for k, v in outputs(plan, f32).items()})
    st_write(path, tensors, {'format': 'sparktape-ple-1'})


if __name__ == '__main__':
    if sys.argv[1:]:
        write(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        for T, seed, n, hc in GOLDENS:
            write(os.path.join(HERE, f'T{T}_n{n}_hc{hc}.safetensors'), T, seed, n, hc)
