"""quantize as a user meets it: its shards decoded by a reader written from the format's text alone, beside the model and
apart, killed and gone on with, calibrated; what it refuses."""
import glob, json, os, shutil, signal, subprocess, sys, time
import numpy as np

from lib import Failed, Product, check, main, read  # noqa: F401

QUICK = ('--experts', 4, '--dense', 5, '--head', 6)
ERROR = {4: 0.0664, 5: 0.0341, 6: 0.0174}  # of normal weights


def model(p, folder='model', **edit):
    """A checkpoint of a few hundred tiles."""
    if os.path.exists(folder):
        return folder
    p.ok('synth', 'tiny', '--config', 'tiny')
    config = json.load(open('tiny/config.json'))
    shutil.rmtree('tiny')
    config.update(dim=128, moe_inter_dim=64, vocab_size=300, dspark_noise_token_id=5, n_mtp_layers=1, n_heads=2,
                  head_dim=32, rope_head_dim=16, q_lora_rank=64, o_groups=2, o_lora_rank=32, dspark_markov_rank=16,
                  dspark_n_routed_experts=1, dspark_n_activated_experts=1, dspark_target_layer_ids=[38])
    config.update(edit)
    json.dump(config, open('config.json', 'w'))
    p.ok('synth', folder, '--config', 'config.json')
    return folder


def fresh(*folders):
    for f in folders:
        shutil.rmtree(f, ignore_errors=True)


def shards(folder):
    return {os.path.basename(f): open(f, 'rb').read() for f in sorted(glob.glob(folder + '/exl3-*.safetensors'))}


def tensors(folder):
    out = {}
    for f in glob.glob(folder + '/*.safetensors'):
        out.update(raw(f))
    return out


def raw(path):
    """name: (dtype, shape, bytes), whatever the dtype is."""
    data = open(path, 'rb').read()
    n = int.from_bytes(data[:8], 'little')
    header = json.loads(data[8:8 + n])
    header.pop('__metadata__', None)
    at = 8 + n
    span = {k: slice(at + v['data_offsets'][0], at + v['data_offsets'][1]) for k, v in header.items()}
    return {k: (v['dtype'], v['shape'], data[span[k]]) for k, v in header.items()}


# ---- the format, as its text says ----

def codebook(marker):
    s = np.arange(65536, dtype=np.uint64)
    if marker == 'mul1':
        x = (s * 0x83DCD12D) & 0xffffffff
        b = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)
        return ((1024.0 + b) * 0.00676727294921875 - 10.3828125).astype(np.float16).astype(np.float64)
    x = s * (0xCBAC1FED if marker == 'mcg' else 89226354) + (0 if marker == 'mcg' else 64248484)
    x = ((x & 0xffffffff) & 0x8FFF8FFF) ^ 0x3B603B60
    lo, hi = ((x >> shift & 0xffff).astype(np.uint16).view(np.float16).astype(np.float32) for shift in (0, 16))
    return (lo + hi).astype(np.float16).astype(np.float64)


def effective(t, name):
    """W [in, out] of an EXL3 linear."""
    dtype, (ti, tj, words), data = t[name + '.trellis']
    check(dtype == 'I16' and words % 16 == 0, f'{name}: {dtype} [{ti}, {tj}, {words}]')
    bits = words // 16
    marker = 'mul1' if name + '.mul1' in t else 'mcg' if name + '.mcg' in t else '3inst'
    if marker != '3inst':
        value = int.from_bytes(t[f'{name}.{marker}'][2], 'little')
        check(value == {'mcg': 0xCBAC1FED, 'mul1': 0x83DCD12D}[marker], f'{name}: marker {value:#x}')
    u = np.frombuffer(data, '<u4').reshape(ti, tj, 8 * bits)
    stream = (u[..., None] >> np.arange(31, -1, -1, dtype=np.uint32) & 1).reshape(ti, tj, 256 * bits)
    p = np.arange(256)
    at = ((p[:, None] + 1) * bits - 16 + np.arange(16)) % (256 * bits)
    state = (stream[..., at] << np.arange(15, -1, -1)).sum(-1)
    lane, j = p // 8, p % 8
    row, col = 2 * (lane % 4) + (j & 1) + 8 * (j >> 1 & 1), lane // 4 + 8 * (j >> 2)
    tile = np.zeros((ti, tj, 16, 16))
    tile[:, :, row, col] = codebook(marker)[state]
    w = tile.transpose(0, 2, 1, 3).reshape(16 * ti, 16 * tj)
    a = np.arange(128)
    h = np.where([[bin(x & y).count('1') % 2 for y in a] for x in a], -1.0, 1.0) / np.sqrt(128)
    w = np.einsum('ab,kbn->kan', h, w.reshape(ti // 8, 128, -1)).reshape(w.shape)
    w = np.einsum('mkb,ab->mka', w.reshape(w.shape[0], -1, 128), h).reshape(w.shape)
    suh, svh = (np.frombuffer(t[f'{name}.{v}'][2], '<f2').astype(np.float64) for v in ('suh', 'svh'))
    return w * suh[:, None] * svh[None, :]


def official(p, folder, name):
    """[out, in] as the product itself decodes it; its own tests check that."""
    p.ok('weights', folder, name + '.weight', '--decode', '-o', 'decoded.safetensors')
    ((dtype, a),) = read('decoded.safetensors')[0].values()
    return (a.astype(np.uint32) << 16).view(np.float32).astype(np.float64) if dtype == 'BF16' else a.astype(np.float64)


# ---- tests ----

def decodes_to_the_official_weights(p):
    m = model(p)
    fresh('apart')
    r = json.loads(p.ok('quantize', m, 'apart', *QUICK, '--json').stdout)
    check(r['kept'] == 0 and r['tiles'] > 300 and r['tensors'] % 4 == 0, r)
    t = tensors('apart')
    for name, bits in (('head', 6), ('mtp.0.main_proj', 5), ('mtp.0.attn.wkv', 5), ('mtp.0.ffn.experts.0.w1', 4),
                       ('mtp.0.ffn.experts.0.w2', 4), ('mtp.0.ffn.shared_experts.w3', 5)):
        want = official(p, m, name).T
        got = effective(t, name)
        k, n = want.shape
        check(got.shape[0] % 128 == 0 and got.shape[1] % 128 == 0, f'{name}: {got.shape}')
        check(not got[k:].any() and not got[:, n:].any(), f'{name}: its padding is not zero')
        e = np.linalg.norm(got[:k, :n] - want) / np.linalg.norm(want)
        check(0.4 * ERROR[bits] < e < 1.08 * ERROR[bits], f'{name}: relative error {e:.5f}, wanted {ERROR[bits]}')
    for part, bits in (('experts', 4), ('dense', 5), ('head', 6)):
        check(r[part]['bits'] == bits and abs(r[part]['rms'] / ERROR[bits] - 1) < 0.08, r[part])


def apart_is_a_checkpoint_of_its_own(p):
    m = model(p)
    if not os.path.exists('apart'):
        p.ok('quantize', m, 'apart', *QUICK)
    index = json.load(open('apart/model.safetensors.index.json'))
    t, o = tensors('apart'), tensors(m)
    check(set(index['weight_map']) == set(t), 'the index and the shards name other tensors')
    check(index['metadata']['total_size'] == sum(len(x[2]) for x in t.values()), index['metadata'])
    check(json.load(open('apart/config.json')) == json.load(open(m + '/config.json')), 'config.json differs')
    kept = [k for k in o if k in t]
    for k in kept:
        check(t[k] == o[k], f'{k}: not the official bytes')
    check('mtp.0.attn.wo_a.weight' in kept and 'embed.weight' in kept and 'head.weight' not in kept, kept)
    for k in set(o) - set(kept):
        check(k.rsplit('.', 1)[0] + '.trellis' in t, f'{k} is lost')


def a_second_run_finds_it_all(p):
    m = model(p)
    if not os.path.exists('apart'):
        p.ok('quantize', m, 'apart', *QUICK)
    want = shards('apart')
    r = json.loads(p.ok('quantize', m, 'apart', *QUICK, '--json').stdout)
    check(r['kept'] == r['shards'] and r['tiles'] == 0 and r['head']['rms'] is None, f'second run: {r}')
    check(shards('apart') == want, 'other bytes')


def killed_beside_the_model_it_goes_on_to_the_same_bytes(p):
    """And with other threads, and into another folder."""
    m = model(p)
    if not os.path.exists('apart'):
        p.ok('quantize', m, 'apart', *QUICK)
    fresh('beside')
    shutil.copytree(m, 'beside')
    run = subprocess.Popen([p.path, 'quantize', 'beside', 'beside', *map(str, QUICK), '--threads', '1'], env=p.env,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(6000):
        if shards('beside') or run.poll() is not None:
            break
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    there, before = shards('beside'), json.load(open(m + '/model.safetensors.index.json'))['weight_map']
    check(there and 'exl3-head.safetensors' not in there, f'was not killed in the middle: {list(there)}')
    for f in there:
        raw('beside/' + f)
    index = json.load(open('beside/model.safetensors.index.json'))['weight_map']
    check(index == before, 'half a delivery is in the index')
    r = json.loads(p.ok('quantize', 'beside', 'beside', *QUICK, '--json').stdout)
    check(r['kept'] == len(there), r)
    want, got = shards('apart'), shards('beside')
    want.pop('exl3-official.safetensors')
    check(got == want, f'other bytes in {[k for k in want if got.get(k) != want[k]]}')
    check(not glob.glob('beside/*.part'), 'a .part is left')
    index = json.load(open('beside/model.safetensors.index.json'))['weight_map']
    check(set(index) == set(tensors('beside')), 'the index was not extended')
    check(all(index[k] == v for k, v in before.items()), 'the index lost an entry')


def ctrl_c_is_one_line(p):
    m = model(p)
    fresh('stopped')
    run = subprocess.Popen([p.path, 'quantize', m, 'stopped', '--threads', '1'], env=p.env, text=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not os.path.exists('stopped') and run.poll() is None:
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    check(run.returncode == 5 and 'interrupted' in said and len(said.splitlines()) == 1, f'{run.returncode}: {said}')
    check(not glob.glob('stopped/*.part'), 'a .part is left')


def other_parameters_are_refused(p):
    m = model(p)
    if not os.path.exists('apart'):
        p.ok('quantize', m, 'apart', *QUICK)
    fresh('changed')
    shutil.copytree('apart', 'changed')
    p.refused(2, ['exl3-', '--force'], 'quantize', m, 'changed', *QUICK, '--seed', 2)
    p.refused(2, 'exl3-head', 'quantize', m, 'changed', '--experts', 4, '--head', 5)
    open('changed/exl3-head.safetensors', 'wb').write(b'no such thing')
    p.refused(3, 'exl3-head', 'quantize', m, 'changed', *QUICK)
    p.ok('quantize', m, 'changed', *QUICK, '--force')
    check(shards('changed') == shards('apart'), 'other bytes after --force')
    r = json.loads(p.ok('quantize', m, 'changed', *QUICK[:4], '--head', 4, '--force', '--json').stdout)
    check(r['kept'] == r['shards'] - 1 and r['head']['bits'] == 4 and r['dense']['rms'] is None, r)
    check(tensors('changed')['head.trellis'][1][2] == 64, 'the bits did not change')
    if os.path.exists('beside'):
        p.ok('quantize', 'beside', 'beside', *QUICK[:4], '--head', 4, '--force')
        index = json.load(open('beside/model.safetensors.index.json'))
        t = tensors('beside')
        check(set(index['weight_map']) == set(t), 'the index has names of the replaced shard')
        check(index['metadata']['total_size'] == sum(len(x[2]) for x in t.values()), index['metadata'])


def another_codebook_has_its_marker(p):
    m = model(p)
    fresh('book')
    p.ok('quantize', m, 'book', '--experts', 8, '--dense', 8, '--head', 4, '--codebook', 'mcg')
    t, w = tensors('book'), official(p, m, 'head').T
    check('head.mcg' in t and 'head.mul1' not in t, 'its marker')
    e = np.linalg.norm(effective(t, 'head')[:w.shape[0], :w.shape[1]] - w) / np.linalg.norm(w)
    check(e < 1.08 * ERROR[4], f'relative error {e:.4f}')


def hostile_options_are_one_line(p):
    m = model(p)
    for args, words in ((('--experts', 0), '--experts'), (('--dense', 9), '--dense'), (('--head', -1), '--head'),
                        (('--experts', 'two'), '--experts'), (('--codebook', 'mul2'), 'mul2'),
                        (('--backend', 'gpu'), 'gpu'), (('--calibrate',), '--calibrate'), (('--bits', 2), '--bits')):
        p.refused(2, words, 'quantize', m, 'nowhere', *args)
    p.refused(2, 'OUT', 'quantize', m)
    p.refused(3, 'nothing-here', 'quantize', 'nothing-here', 'nowhere')
    p.refused(3, 'absent.tape', 'quantize', m, 'nowhere', '--calibrate', 'absent.tape')
    check(not os.path.exists('nowhere'), 'a refusal left a folder')
    open('file', 'w').close()
    p.refused(2, 'file', 'quantize', m, 'file')
    p.refused(5, 'deep/down', 'quantize', m, 'deep/down')
    fresh('foreign')
    os.mkdir('foreign')
    open('foreign/notes.txt', 'w').close()
    p.refused(2, 'notes.txt', 'quantize', m, 'foreign')
    if not os.path.exists('apart'):
        p.ok('quantize', m, 'apart', *QUICK)
    p.refused(4, 'missing', 'quantize', 'apart', 'nowhere')


def calibrated(p):
    m = model(p)
    p.ok('script', 'script.safetensors', '--model', m, '--rounds', 6, '--slots', 2, '--force')
    p.ok('record', m, '--script', 'script.safetensors', '-o', 'deep.tape', '--level', 'deep')
    p.ok('record', m, '--script', 'script.safetensors', '-o', 'two.tape', '--level', 'deep', '--tp', 2)
    p.ok('record', m, '--script', 'script.safetensors', '-o', 'io.tape', '--level', 'io')
    fresh('better', 'two')
    r = json.loads(p.ok('quantize', m, 'better', *QUICK, '--calibrate', 'deep.tape', '--json').stdout)
    check(r['experts']['calibrated'] == r['experts']['linears'] == 3, r['experts'])
    # All but the shared expert's w2, whose input no tape has.
    check(r['dense']['calibrated'] == r['dense']['linears'] - 1 and r['head']['calibrated'] == 1, r)
    for part in ('experts', 'dense', 'head'):
        check(0 < r[part]['proxy'] < 0.9 * r[part]['rms'] ** 2, f'{part}: the Hessian changes nothing: {r[part]}')
    p.ok('quantize', m, 'two', *QUICK, '--calibrate', 'two.tape')
    t, n = tensors('better'), tensors('two')
    a, b = effective(t, 'mtp.0.attn.wo_b'), effective(n, 'mtp.0.attn.wo_b')
    check(np.linalg.norm(a - b) < 0.1 * np.linalg.norm(a), 'two ranks give another wo_b')
    p.refused(2, 'exl3-', 'quantize', m, 'better', *QUICK)
    fresh('within')
    shutil.copytree(m, 'within')
    for name in ('exl3-head', 'exl3-s0-experts-000'):
        shutil.copy(f'better/{name}.safetensors', 'within')
    os.remove('within/model.safetensors.index.json')  # so that the tape's checkpoint has no delivery, and this one has
    r = json.loads(p.ok('quantize', 'within', 'within', *QUICK, '--calibrate', 'deep.tape', '--json').stdout)
    check(r['kept'] == 2 and shards('within')['exl3-s0-dense.safetensors'] == shards('better')['exl3-s0-dense.safetensors'],
          f'gone on with in the model itself: {r}')
    p.refused(3, 'deep', 'quantize', m, 'nowhere', '--calibrate', 'io.tape')
    model(p, 'other', dim=192)
    p.refused(4, 'checkpoint', 'quantize', 'other', 'nowhere', '--calibrate', 'deep.tape')


if __name__ == '__main__':
    main([decodes_to_the_official_weights, apart_is_a_checkpoint_of_its_own,
          a_second_run_finds_it_all, killed_beside_the_model_it_goes_on_to_the_same_bytes, ctrl_c_is_one_line,
          other_parameters_are_refused, another_codebook_has_its_marker,
          hostile_options_are_one_line, calibrated])
