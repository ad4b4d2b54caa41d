"""Every refusal, through the command line: exit code, one line that names the thing, and no output left behind."""
import functools, json, os, shutil, struct, subprocess
import numpy as np

import lib
from lib import check
from oracle import st_read, st_write

SHARDS = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
INDEX = 'model.safetensors.index.json'
BASE, SCRIPT = 'base', os.path.join('base', 'script.safetensors')
SCRIPT_META = {'format': 'sparktape-script-1'}
NUMPY_OF = {'F32': np.float32, 'F16': np.float16, 'BF16': np.uint16, 'I32': np.int32}


# ---- making bad inputs ----

def base():
    if not os.path.exists(SCRIPT):
        lib.case(BASE, 7)
    return BASE


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def linked(folder='model'):
    """The base checkpoint as symbolic links, so that a case replaces only what it spoils."""
    fresh(folder)
    for name in ('config.json', INDEX, *SHARDS):
        os.symlink(os.path.join('..', base(), name), os.path.join(folder, name))
    return folder


def put(folder, name, data):
    path = os.path.join(folder, name)
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, 'wb') as f:
        f.write(data if isinstance(data, bytes) else data.encode())
    return path


def get(folder, name):
    with open(os.path.join(folder, name), 'rb') as f:
        return f.read()


def index_of(folder):
    return json.loads(get(folder, INDEX))


@functools.lru_cache
def shard_tensors(shard):
    """{name: (dtype, array)} of a shard of base; the arrays cannot be written."""
    return st_read(os.path.join(base(), shard))[0]


def with_tensors(edit, folder='model'):
    """Rewrites the shards, and their index, after edit({name: (dtype, array)})."""
    linked(folder)
    tensors, home = {n: t for s in SHARDS for n, t in shard_tensors(s).items()}, index_of(folder)['weight_map']
    edit(tensors)
    home = {n: home.get(n, SHARDS[1]) for n in tensors}
    for shard in SHARDS:
        own = {n: t for n, t in tensors.items() if home[n] == shard}
        was = shard_tensors(shard)
        if own.keys() == was.keys() and all(t is was[n] for n, t in own.items()):
            continue  # the link will do
        os.unlink(os.path.join(folder, shard))
        st_write(os.path.join(folder, shard), own)
    put(folder, INDEX, json.dumps({'weight_map': home}))
    return folder


def with_index(edit, folder='model'):
    linked(folder)
    index = index_of(folder)
    edit(index)
    put(folder, INDEX, json.dumps(index))
    return folder


def with_shard(edit, folder='model', shard=SHARDS[0]):
    """Replaces a shard by edit(its bytes)."""
    linked(folder)
    put(folder, shard, edit(get(folder, shard)))
    return folder


def with_header(edit, folder='model', tail=b''):
    """Rewrites a shard's header after edit(header); its data stays, tail follows."""
    def change(data):
        n = struct.unpack('<Q', data[:8])[0]
        header = json.loads(data[8:8 + n])
        text = edit(header)
        text = text if isinstance(text, bytes) else json.dumps(header).encode()
        return struct.pack('<Q', len(text)) + text + data[8 + n:] + tail
    return with_shard(change, folder)


def with_config(edit, folder='model'):
    linked(folder)
    config = json.loads(get(folder, 'config.json'))
    text = edit(config)
    put(folder, 'config.json', text if isinstance(text, str) else json.dumps(config))
    return folder


def script(edit, path='bad.safetensors', meta=SCRIPT_META):
    tensors = dict(st_read(os.path.join(base(), 'script.safetensors'))[0])
    edit(tensors)
    st_write(path, tensors, meta)
    return path


def rows(n, first, width=768):
    """An insert's two tensors."""
    return ('BF16', np.full((n, width), 0x3f80, np.uint16)), ('I32', np.arange(first, first + n, dtype=np.int32))


def insert(s, r, slot, n, first):
    s[f'round.{r}.insert.{slot}.taps'], s[f'round.{r}.insert.{slot}.pos'] = rows(n, first)


def draft(s, r, slots, pos, anchor=None, n_out=5):
    for part, v in (('slots', slots), ('pos', pos), ('anchor', anchor or [1] * len(slots)), ('n_out', [n_out])):
        s[f'round.{r}.draft.{part}'] = ('I32', np.array(v, np.int32))


def small(edit, path='small.safetensors', meta=SCRIPT_META):
    """A script from nothing."""
    s = {}
    edit(s)
    base()
    st_write(path, s, meta)
    return path


# ---- what a refusal is ----

def record_refused(p, exits, words, model, *options, traffic=SCRIPT, label=''):
    out = os.path.join(fresh('out'), 'T.tape')
    try:
        line = p.refused(exits, words, 'record', model, '--script', traffic, '-o', out, *options)
    except lib.Failed as why:
        raise lib.Failed(f'{label}: {why}')
    check(os.listdir('out') == [], f'{label}: left behind {os.listdir("out")}')
    check(line.startswith('sparktape record: '), f'{label}: no command in front: {line}')


def record_runs(p, model, *options, traffic=SCRIPT, label=''):
    out = os.path.join(fresh('out'), 'T.tape')
    r = p.run('record', model, '--script', traffic, '-o', out, '--level', 'io', *options)
    check(r.returncode == 0 and os.listdir('out') == ['T.tape'],
          f'{label}: exit {r.returncode} {os.listdir("out")}: {r.stderr[-400:]}')
    return out


def set_element(name, value, at=0):
    def edit(t):
        dtype, a = t[name]
        a = a.copy()
        a.ravel()[at] = value
        t[name] = (dtype, a)
    return edit


def retype(name, dtype=None, shape=None):
    def edit(t):
        d, a = t[name]
        if dtype:
            a = np.zeros(a.shape, NUMPY_OF.get(dtype, np.uint8))
        t[name] = (dtype or d, a if shape is None else np.zeros(shape, a.dtype))
    return edit


# ---- tensors ----

def tensors(p):
    expert = 'mtp.1.ffn.experts.3.w2'
    for name in (
            'embed.weight', 'head.weight', 'mtp.0.main_proj.scale', 'mtp.1.attn.attn_sink', 'mtp.2.norm.weight',
            expert + '.weight', expert + '.scale', 'mtp.0.ffn.gate.bias_vl', 'mtp.2.markov_head.head.weight',
            'mtp.2.confidence_head.proj.weight'):
        record_refused(p, (3, 4), [name, 'missing'], with_tensors(lambda t: t.pop(name)), label=f'missing {name}')
    for name in (
            'mtp.0.extra.weight', 'mtp.3.norm.weight', 'mtp.1.ffn.experts.8.w1.weight', 'mtp.1.main_norm.weight', 'mtp.x',
            'mtp.', 'mtp.0.attn.wkv.weight_scale_inv', 'mtp.0.ffn.gate.bias.scale', 'mtp.01.attn_norm.weight'):
        def unknown(t):
            t[name] = ('F32', np.zeros(2, np.float32))
        record_refused(p, (3, 4), [name, 'unknown'], with_tensors(unknown), label=f'unknown {name}')
    for name, dtype in (
            ('mtp.0.main_proj.weight', 'U8'), ('mtp.0.attn.wkv.scale', 'F32'), (expert + '.weight', 'BF16'),
            ('embed.weight', 'F16'), ('mtp.2.attn.attn_sink', 'BF16'), ('mtp.1.ffn.gate.bias', 'I32'),
            ('mtp.0.attn_norm.weight', 'F32')):
        record_refused(p, (3, 4), [name, dtype, 'wanted'], with_tensors(retype(name, dtype=dtype)), label=f'dtype {name}')
    for name, shape in (
            ('mtp.0.main_proj.weight', (256, 736)), ('mtp.0.main_proj.scale', (8, 23)), (expert + '.weight', (256, 128)),
            (expert + '.scale', (4, 256)), ('embed.weight', (1279, 256)), ('mtp.1.attn_norm.weight', (1, 256)),
            ('mtp.1.hc_ffn_scale', (4,)), ('mtp.2.confidence_head.proj.weight', (288,)), ('mtp.0.attn.attn_sink', ()),
            ('mtp.0.attn_norm.weight', (0,))):
        record_refused(p, (3, 4), [name, 'wanted'], with_tensors(retype(name, shape=shape)), label=f'shape {name} {shape}')


def no_tensor_may_hold_nan(p):
    for name, value, at in (
            ('mtp.0.attn.wkv.weight', 0x7f, 5), ('mtp.2.ffn.shared_experts.w2.weight', 0xff, -1),
            ('mtp.0.attn.wkv.scale', 255, 3), ('mtp.2.ffn.experts.7.w3.scale', 255, -1), ('embed.weight', 0x7fc0, -1),
            ('head.weight', 0xff81, 0), ('mtp.1.ffn_norm.weight', 0x7f81, 9), ('mtp.1.hc_attn_fn', np.nan, 77),
            ('mtp.2.ffn.gate.bias', -np.nan, 1), ('mtp.0.ffn.gate.bias_vl', np.nan, 0), ('mtp.0.attn.attn_sink', np.nan, 3),
            ('mtp.2.markov_head.embed.weight', 0x7fff, 100)):
        record_refused(p, (3, 4), [name, 'NaN'], with_tensors(set_element(name, value, at)), label=f'NaN in {name}')
    record_refused(p, (3, 4), ['mtp.0.attn.wkv.scale', '255'], with_tensors(set_element('mtp.0.attn.wkv.scale', 255)),
                   label='scale byte 255')


def shards(p):
    name = 'mtp.0.attn.wkv.weight'
    def move(by, end):
        def edit(h):
            a, b = h[name]['data_offsets']
            h[name]['data_offsets'] = [a + by, b + end]
        return edit
    def offsets(v):
        def edit(h): h[name]['data_offsets'] = v
        return edit
    for label, edit, words in (
            ('overlap', move(-32, -32), ['overlap']), ('gap', move(32, 32), [SHARDS[0]]), ('long span', move(0, 1), [name]),
            ('short span', move(0, -1), [name]), ('past the end', offsets([0, 1 << 50]), [name]),
            ('backwards', offsets([100, 50]), [name]), ('negative', offsets([-1, 5]), [name]),
            ('huge', offsets([1 << 62, (1 << 63) - 1]), [name]), ('three offsets', offsets([0, 1, 2]), [name]),
            ('words', offsets(['0', '1']), [name]), ('reals', offsets([0.0, 1.0]), [name]),
            ('no offsets', lambda h: h[name].pop('data_offsets') and None, [name]),
            ('no dtype', lambda h: h[name].pop('dtype') and None, [name, 'dtype']),
            ('no shape', lambda h: h[name].pop('shape') and None, [name, 'shape']),
            ('unknown dtype', lambda h: h[name].update(dtype='F9'), [name, 'F9']),
            ('negative shape', lambda h: h[name].update(shape=[-64, 256]), [name, 'shape']),
            ('shape of words', lambda h: h[name].update(shape=['64', '256']), [name, 'shape']),
            ('overflowing shape', lambda h: h[name].update(shape=[1 << 40, 1 << 40]), [name]),
            ('entry is a list', lambda h: h.update({name: []}), [name]),
            ('bad metadata', lambda h: h.update(__metadata__={'a': 1}), ['__metadata__'])):
        record_refused(p, 3, words + [SHARDS[0]], with_header(edit), label=label)
    for label, edit in (
            ('trailing bytes', lambda d: d + b'\0'), ('truncated', lambda d: d[:-1]), ('only the length', lambda d: d[:8]),
            ('five bytes', lambda d: d[:5]), ('empty', lambda d: b''), ('half the header', lambda d: d[:500]),
            ('header over 100 MB', lambda d: struct.pack('<Q', 100_000_001) + d[8:]),
            ('header longer than the file', lambda d: struct.pack('<Q', len(d)) + d[8:]),
            ('header of 2^64 - 1', lambda d: b'\xff' * 8 + d[8:]), ('header of 0', lambda d: b'\0' * 8 + d[8:]),
            ('not JSON', lambda d: d[:8] + b'{]' + d[10:]), ('a list', lambda d: struct.pack('<Q', 2) + b'[]'),
            ('a space first', lambda d: struct.pack('<Q', 3) + b' {}'),
            ('NUL in the header', lambda d: d[:20] + b'\0' + d[21:]), ('no UTF-8', lambda d: d[:20] + b'\xff' + d[21:]),
            ('text', lambda d: b'hello, this is no shard at all')):
        record_refused(p, 3, [SHARDS[0]], with_shard(edit), label=label)
    def twice(h):
        text = json.dumps(h)
        return (text[:-1] + ', ' + json.dumps({name: h[name]})[1:]).encode()
    record_refused(p, 3, [SHARDS[0], 'uplicate'], with_header(twice), label='one name twice in a header')
    record_refused(p, 3, [SHARDS[0]], with_header(lambda h: b'{"a":' * 5000 + b'1' + b'}' * 5000), label='deep nesting')
    m = linked()
    os.unlink(os.path.join(m, SHARDS[0]))
    os.mkdir(os.path.join(m, SHARDS[0]))
    record_refused(p, 3, [SHARDS[0]], m, label='a shard that is a folder')
    m = linked()
    os.unlink(os.path.join(m, SHARDS[0]))
    os.mkfifo(os.path.join(m, SHARDS[0]))
    record_refused(p, 3, [SHARDS[0]], m, label='a shard that is a pipe')
    for target in ('nowhere', SHARDS[0]):
        m = linked()
        os.unlink(os.path.join(m, SHARDS[0]))
        os.symlink(target, os.path.join(m, SHARDS[0]))
        record_refused(p, 3, [SHARDS[0]], m, label=f'a link to {target}')


# ---- index ----

def index(p):
    for label, text in (
            ('empty', ''), ('not JSON', 'weights'), ('cut', '{"weight_map": {'), ('a list', '[]'), ('no weight_map', '{}'),
            ('a map of the wrong type', '{"weight_map": 3}')):
        m = linked()
        put(m, INDEX, text)
        record_refused(p, 3, [INDEX], m, label=f'index {label}')
    name = 'mtp.0.attn.wkv.weight'
    absolute = os.path.abspath(os.path.join(base(), SHARDS[0]))
    for shard in ('../base/' + SHARDS[0], absolute, '..', '.', '', 'sub/../../base/' + SHARDS[0], 7, None):
        m = with_index(lambda i: i['weight_map'].update({name: shard}))
        record_refused(p, 3, [INDEX, name], m, label=f'index: shard {shard!r}')
    m = with_index(lambda i: i['weight_map'].update({name: 'model-00009-of-00002.safetensors'}))
    record_refused(p, 3, [INDEX, 'model-00009-of-00002.safetensors'], m, label='index: a shard that is not there')
    m = with_index(lambda i: i['weight_map'].update({name: SHARDS[1]}))
    record_refused(p, 3, [INDEX, name, SHARDS[1]], m, label='index: the wrong shard')
    m = with_index(lambda i: i['weight_map'].pop(name))
    record_refused(p, (3, 4), [name], m, label='index: a wanted tensor left out')
    m = with_index(lambda i: i.update(weight_map={}))
    record_refused(p, (3, 4), ['embed.weight'], m, label='index: nothing')
    m = linked()
    text = get(m, INDEX).decode().rstrip()
    put(m, INDEX, text.replace('"weight_map": {', '"weight_map": {"%s": "%s",' % (name, SHARDS[0]), 1))
    record_refused(p, 3, [INDEX, 'uplicate'], m, label='index: one name twice')
    m = linked()
    os.unlink(os.path.join(m, INDEX))
    os.mkdir(os.path.join(m, INDEX))
    record_refused(p, 3, [INDEX], m, label='index: a folder')


def folders_without_an_index(p):
    m = linked()
    os.unlink(os.path.join(m, INDEX))
    record_runs(p, m, label='shards only')
    shutil.copy(os.path.join(base(), SHARDS[0]), os.path.join(m, 'again.safetensors'))
    record_refused(p, 3, ['again.safetensors', SHARDS[0]], m, label='one tensor in two shards')
    os.unlink(os.path.join(m, 'again.safetensors'))
    os.unlink(os.path.join(m, SHARDS[1]))
    record_refused(p, (3, 4), ['mtp.', 'missing'], m, label='one shard of two')
    os.unlink(os.path.join(m, SHARDS[0]))
    record_refused(p, 3, ['model', 'safetensors'], m, label='no shard')
    everything = {}
    for s in SHARDS:
        everything.update(st_read(os.path.join(base(), s))[0])
    st_write(os.path.join(m, 'model.safetensors'), everything)
    record_runs(p, m, label='one shard with all')


def what_is_ignored(p):
    plain = record_runs(p, base(), label='base')
    os.replace(plain, 'plain.tape')
    def same(model, label):
        out = record_runs(p, model, label=label)
        p.ok('diff', 'plain.tape', out, '--quiet')
    def copies(t):
        for name in ('mtp.2.embed.weight', 'mtp.0.embed.weight', 'mtp.1.head.weight'):
            t[name] = ('BF16', np.full((3, 5), 0x7fc0, np.uint16))
    same(with_tensors(copies), 'copies of embed and head')
    def target(t):
        t['layers.0.attn.wkv.weight'] = ('F8_E4M3', np.full((4, 4), 0x7f, np.uint8))
        t['norm.weight'] = t['hc_head_fn'] = ('F32', np.array([np.nan], np.float32))
        t['layers.3.engram.tok'] = ('I64', np.zeros((0, 4), np.int64))
    same(with_tensors(target), 'target tensors')
    def absent(i):
        for k in range(44):
            i['weight_map'][f'layers.{k}.ffn.gate.weight'] = f'model-{k + 3:05d}-of-00046.safetensors'
        i['weight_map']['mtp.2.embed.weight'] = 'model-00099-of-00046.safetensors'
    same(with_index(absent), 'absent shards of the target')
    same(linked(), 'shards as links')
    same(with_config(lambda c: c.update(n_routed_experts='many', new_key=[1, {}])), 'other config keys')
    record_runs(p, with_tensors(set_element('mtp.1.attn.attn_sink', -np.inf, 2)), label='attn_sink -inf')


# ---- config ----

INTEGERS = ('vocab_size dim moe_inter_dim n_layers n_mtp_layers dspark_block_size dspark_noise_token_id dspark_markov_rank '
            'dspark_n_routed_experts dspark_n_activated_experts n_heads q_lora_rank head_dim rope_head_dim o_groups '
            'o_lora_rank window_size hc_mult hc_sinkhorn_iters').split()
REALS = 'route_scale swiglu_limit norm_eps rope_theta hc_eps'.split()
WORDS = 'score_func dtype expert_dtype'.split()


def config(p):
    for turn, key in enumerate(INTEGERS + REALS + WORDS + ['dspark_target_layer_ids']):
        record_refused(p, (3, 4), ['config.json', key], with_config(lambda c: c.pop(key) and None), label=f'no {key}')
        for value in p.some(([{}], None, True), turn):
            record_refused(p, (3, 4), ['config.json', key], with_config(lambda c: c.update({key: value})),
                           label=f'{key} = {value}')
    for turn, key in enumerate(INTEGERS):
        for value in p.some((-1, 1.5, '128', 1 << 31, 1 << 62), turn):
            record_refused(p, (3, 4), ['config.json', key], with_config(lambda c: c.update({key: value})),
                           label=f'{key} = {value}')
    for key in REALS:
        for value in ('1', [1.0]):
            record_refused(p, (3, 4), ['config.json', key], with_config(lambda c: c.update({key: value})),
                           label=f'{key} = {value}')
    for key, value in (
            ('vocab_size', 0), ('dim', 0), ('dim', 255), ('n_mtp_layers', 0), ('dspark_noise_token_id', 1280),
            ('dspark_n_activated_experts', 9), ('dspark_n_activated_experts', 0), ('o_groups', 3), ('o_groups', 0),
            ('rope_head_dim', 66), ('rope_head_dim', 15), ('head_dim', 40), ('window_size', 0), ('hc_mult', 0),
            ('hc_sinkhorn_iters', 0), ('norm_eps', -1), ('rope_theta', 0), ('dspark_target_layer_ids', []),
            ('dspark_target_layer_ids', [37, 38, 40]), ('dspark_target_layer_ids', [37, -1, 39]),
            ('dspark_target_layer_ids', 37), ('score_func', 'sigmoid'), ('score_func', 'softmax'), ('dtype', 'bf16'),
            ('expert_dtype', 'fp8')):
        record_refused(p, (3, 4), ['config.json', key], with_config(lambda c: c.update({key: value})),
                       label=f'{key} = {value}')
    for label, text in (
            ('empty', ''), ('a list', '[]'), ('cut', '{"dim": 256'), ('rubbish', '\x00\x01'),
            ('infinite', '{"norm_eps": 1e999}'), ('deep', '[' * 100000)):
        record_refused(p, 3, ['config.json'], with_config(lambda c: text), label=f'config {label}')
    m = linked()
    os.unlink(os.path.join(m, 'config.json'))
    record_refused(p, 3, ['config.json'], m, label='no config')
    os.mkdir(os.path.join(m, 'config.json'))
    record_refused(p, 3, ['config.json'], m, label='config is a folder')
    # a config that asks for other tensors than there are
    for key, value, name in (
            ('n_mtp_layers', 2, 'mtp.'), ('window_size', 64, None), ('dspark_n_routed_experts', 9, 'mtp.0.ffn.experts.8'),
            ('n_heads', 8, 'mtp.0.attn.')):
        if name:
            record_refused(p, (3, 4), [name], with_config(lambda c: c.update({key: value})), label=f'{key} = {value}')


# ---- scripts ----

def scripts(p):
    def change(name, f):
        def edit(s):
            dtype, a = s[name]
            s[name] = (dtype, f(a.copy()))
        return edit
    def at(i, v):
        def f(a):
            a.ravel()[i] = v
            return a
        return f
    def as_type(name, dtype, numpy_type):
        def edit(s): s[name] = (dtype, s[name][1].astype(numpy_type))
        return edit
    pos, taps = 'round.3.insert.2.pos', 'round.3.insert.2.taps'
    for label, edit, words in (
            ('gap inside', change(pos, at(10, 12)), ['round 3', 'slot 2', 'gap']),
            ('gap after', change('round.4.insert.1.pos', lambda a: a + 1), ['round 4', 'slot 1', 'gap']),
            ('replay', change('round.4.insert.1.pos', lambda a: a - 1), ['round 4', 'slot 1', 'repeat']),
            ('back', change('round.4.insert.1.pos', lambda a: a - 50), ['round 4', 'slot 1', 'back']),
            ('twice', change(pos, at(10, 9)), ['round 3', 'slot 2', 'repeat']),
            ('back inside', change(pos, at(10, 3)), ['round 3', 'slot 2', 'back']),
            ('negative', change(pos, at(0, -1)), ['round 3', 'slot 2', '-1']),
            ('most negative', change(pos, lambda a: a - (1 << 31)), ['round 3', 'slot 2', 'negative']),
            ('beyond', change(pos, lambda a: a + ((1 << 31) - 64)), ['round 3', 'slot 2']),
            ('NaN', change(taps, at(777, 0x7fc0)), ['round 3', 'slot 2', 'taps', 'NaN']),
            ('infinity', change(taps, at(-1, 0xff80)), ['round 3', 'slot 2', 'taps', 'infinity']),
            ('unknown slot', change('round.3.draft.slots', at(1, 9)), ['round 3', 'slot 9', 'before any insert']),
            ('negative slot', change('round.3.draft.slots', at(1, -1)), ['round 3', '-1']),
            ('slot twice', change('round.3.draft.slots', at(1, 1)), ['round 3', 'slot 1', 'twice']),
            ('n_out 0', change('round.3.draft.n_out', at(0, 0)), ['round 3', 'n_out', '0']),
            ('n_out 6', change('round.3.draft.n_out', at(0, 6)), ['round 3', 'n_out', '6']),
            ('n_out -1', change('round.3.draft.n_out', at(0, -1)), ['round 3', 'n_out']),
            ('anchor V', change('round.3.draft.anchor', at(2, 1280)), ['round 3', 'anchor', '1280', 'slot 0']),
            ('anchor -1', change('round.3.draft.anchor', at(2, -1)), ['round 3', 'anchor', '-1']),
            ('P = 0', lambda s: s.update({pos: ('I32', np.zeros(0, np.int32)), taps: ('BF16', np.zeros((0, 768),
                np.uint16))}), ['round 3', 'slot 2', '0']),
            ('narrow taps', change(taps, lambda a: a[:, :-1]), ['round 3', 'slot 2', 'taps', '767', '768']),
            ('flat taps', change(taps, np.ravel), ['round 3', 'slot 2', 'taps']),
            ('wide taps', change(taps, lambda a: np.concatenate([a, a], 1)), ['round 3', 'slot 2', 'taps', '1536']),
            ('taps of F16', as_type(taps, 'F16', np.float16), ['round 3', 'slot 2', 'taps', 'F16']),
            ('taps of F32', as_type(taps, 'F32', np.float32), ['round 3', 'slot 2', 'taps', 'F32']),
            ('pos of I64', as_type(pos, 'I64', np.int64), ['round 3', 'slot 2', 'pos', 'I64']),
            ('pos count', change(pos, lambda a: a[:-1]), ['round 3', 'slot 2', 'pos', '63', '64']),
            ('pos of two dimensions', change(pos, lambda a: a[None]), ['round 3', 'slot 2', 'pos']),
            ('slots of I64', as_type('round.3.draft.slots', 'I64', np.int64), ['round 3', 'slots', 'I64']),
            ('n_out of two', change('round.3.draft.n_out', lambda a: np.repeat(a, 2)), ['round 3', 'n_out']),
            ('anchors short', change('round.3.draft.anchor', lambda a: a[:-1]), ['round 3', 'anchor']),
            ('draft.pos early', change('round.3.draft.pos', lambda a: a - 1), ['round 3', 'draft.pos']),
            ('draft.pos late', change('round.3.draft.pos', lambda a: a + 1), ['round 3', 'draft.pos']),
            ('no slots', change('round.3.draft.slots', lambda a: a[:0]), ['round 3', 'slots']),
            ('five slots', lambda s: [insert(s, 4, 7, 1, 0), draft(s, 4, [0, 1, 2, 3, 7], [4, 134, 63, 299, 0])],
                ['round 4', 'slots']),
            ('unknown name', lambda s: s.update({'round.3.extra': ('I32', np.zeros(1, np.int32))}), ['round.3.extra']),
            ('other words', lambda s: s.update({'hello': ('I32', np.zeros(1, np.int32))}), ['hello']),
            ('no number', lambda s: s.update({'round.x.draft.pos': s.pop('round.3.draft.pos')}), ['round.x.draft.pos']),
            ('leading zero', lambda s: s.update({'round.03.draft.pos': s.pop('round.3.draft.pos')}),
                ['round.03.draft.pos']),
            ('negative round', lambda s: s.update({'round.-1.draft.pos': s.pop('round.3.draft.pos')}),
                ['round.-1.draft.pos']),
            ('round of 2^31', lambda s: s.update({'round.2147483648.draft.pos': s.pop('round.3.draft.pos')}),
                ['round.2147483648.draft.pos']), ('no rounds', lambda s: s.clear(), ['no rounds']),
            ('a slot of 2^40', lambda s: s.update({'round.3.insert.1099511627776.pos': s.pop(pos)}), ['1099511627776'])):
        record_refused(p, 3, words + ['bad.safetensors'], base(), traffic=script(edit), label=f'script: {label}')
    for part in ('slots', 'anchor', 'pos', 'n_out'):
        record_refused(p, 3, ['round 3', part], base(), traffic=script(lambda s: s.pop(f'round.3.draft.{part}')),
                       label=f'script: no draft.{part}')
    for part in ('taps', 'pos'):
        record_refused(p, 3, ['round 3', 'slot 2', part], base(),
                       traffic=script(lambda s: s.pop(f'round.3.insert.2.{part}')), label=f'script: no {part}')
    def hole(s):
        insert(s, 0, 0, 20, 1000)
        draft(s, 0, [0], [1019])
    record_refused(p, 3, ['round 0', 'slot 0', '892', '1000'], base(), traffic=small(hole),
                   label='script: too few rows for the window')
    for label, path in (
            ('missing', 'nowhere.safetensors'), ('a folder', base()), ('a device', '/dev/zero'),
            ('JSON', os.path.join(base(), 'config.json'))):
        record_refused(p, 3, [path], base(), traffic=path, label=f'script: {label}')
    data = get(base(), 'script.safetensors')
    for label, bad in (
            ('empty', b''), ('truncated', data[:-3]), ('trailing', data + b'xy'),
            ('random', np.random.default_rng(1).bytes(5000))):
        put('.', 'bad.safetensors', bad)
        record_refused(p, 3, ['bad.safetensors'], base(), traffic='bad.safetensors', label=f'script: {label}')


def scripts_that_run(p):
    def late(s):
        insert(s, 4, 5, 128, 90000)
        draft(s, 4, [5], [90127])
        insert(s, 9, 5, 3, 90128)
        draft(s, 9, [5], [90130], n_out=1)
    def far_slots(s):
        for i, slot in enumerate((2147483647, 17, 4, 1000000, 9, 8)):
            insert(s, i, slot, 2, 0)
        draft(s, 5, [8, 2147483647, 17], [1, 1, 1])
        draft(s, 6, [4, 9], [1, 1])
    def only_inserts(s):
        insert(s, 0, 0, 2, 0)
        insert(s, 1, 0, 1, 2)
    def split_rounds(s):
        insert(s, 2147483646, 0, 300, 7)
        draft(s, 2147483647, [0], [306])
    for label, edit in (
            ('a prompt that starts late', late), ('any slot numbers', far_slots), ('inserts only', only_inserts),
            ('rounds of one kind', split_rounds)):
        record_runs(p, base(), traffic=small(edit), label=label)
    record_runs(p, base(), traffic=small(far_slots, meta=None), label='no metadata')
    def unaligned(data):
        n = struct.unpack('<Q', data[:8])[0]
        return struct.pack('<Q', n + 1) + data[8:8 + n] + b' ' + data[8 + n:]
    small(late)
    put('.', 'small.safetensors', unaligned(get('.', 'small.safetensors')))
    record_runs(p, base(), traffic='small.safetensors', label='data at an odd byte')


# ---- options ----

def options(p):
    b = base()
    for option, value in (
            ('--arm', 'native'), ('--arm', ''), ('--arm', 'mirror32'), ('--level', 'all'), ('--level', ''),
            ('--level', 'off'), ('--mode', 'lazy'), ('--acc', 'f32'), ('--combine', 'none'), ('--backend', 'tpu'),
            ('--tp', '0'), ('--tp', '-1'), ('--tp', '1000'), ('--tp', 'two'), ('--tp', '2x'), ('--tp', ''),
            ('--tp', '99999999999999999999'), ('--threads', '-1'), ('--threads', 'all'), ('--head', 'k7'),
            ('--color', 'blue'), ('--tap', 's0.attn_out'), ('--tap', 's0.attn_out=everything'), ('--tap', '=tensor')):
        record_refused(p, 2, [option], b, option, value, label=f'{option} {value}')
        record_refused(p, 2, [option], b, f'{option}={value}', label=f'{option}={value}')
    for option in ('--frobnicate', '-x', '--tpx=2', '--json=yes', '--quiet=1'):
        record_refused(p, 2, [option.split('=')[0]], b, option, label=option)
    for arm in ('k2-tp2', 'k2-head', 'native-experts-packed'):
        record_refused(p, 4, [arm, '.trellis', 'sparktape quantize'], b, '--arm', arm, label=f'{arm} without EXL3')
    record_refused(p, 4, ['--head k6', 'head.trellis'], b, '--head', 'k6', label='the K6 head')
    record_refused(p, (2, 5), ['cuda'], b, '--backend', 'cuda', label='no device')
    for arm in ('mirror', 'mirror64'):
        record_refused(p, 2, ['--tp', arm], b, '--arm', arm, '--tp', '2', label=f'{arm} at TP2')
    # four heads, moe_inter_dim 128: no even cut
    for tp in (3, 8):
        record_refused(p, 2, [f'{tp} ranks', 'mtp.0.', 'cut'], b, '--tp', tp, label=f'TP{tp}')
    p.refused(2, ['--kinds', 'nosuch'], 'scorecard', b, '--kinds', 'row-*,nosuch')
    p.refused(2, '--kinds', 'scorecard', b, '--kinds', '')
    p.refused(2, '--script', 'record', b)
    p.refused(2, ['arguments'], 'record', '--script', SCRIPT)
    p.refused(2, ['arguments'], 'record', b, b, '--script', SCRIPT)
    p.refused(2, '--level', 'record', b, '--script', SCRIPT, '--level')
    for args in (
            ['--script', SCRIPT, '-o', 'out/T.tape', '--level', 'io', b],
            [b, '--level=io', '--script=' + SCRIPT, '-o', 'out/T.tape'],
            ['-o', 'out/T.tape', '--tp', '2', b, '--quiet', '--script', SCRIPT, '--mode', 'graph', '--level', 'io',
                '--threads', '1'], ['--script', SCRIPT, '--json', '-o', 'out/T.tape', '--level', 'io', '--', b]):
        fresh('out')
        p.ok('record', *args)
        check(os.listdir('out') == ['T.tape'], f'{args}: {os.listdir("out")}')


def a_cut_inside_a_group_is_named(p):
    """moe_inter_dim 160 is 5 groups: two ranks would cut the third."""
    lib.case('odd', 3, edit=lambda c: c.update(moe_inter_dim=160))
    record_refused(p, 2, ['mtp.0.ffn.', 'w1', '80', '32-element group'], 'odd', '--tp', '2',
                   traffic='odd/script.safetensors', label='w1 at 80')
    record_runs(p, 'odd', traffic='odd/script.safetensors', label='TP1 of the same')
    p.refused(2, ['mtp.0.ffn.', '80'], 'plan', 'odd', '--tp', '2')


def a_ragged_vocabulary_runs_sharded(p):
    lib.case('ragged', 4, edit=lambda c: c.update(vocab_size=1283))
    one = record_runs(p, 'ragged', traffic='ragged/script.safetensors', label='TP1')
    os.replace(one, 'ragged.tape')
    two = record_runs(p, 'ragged', '--tp', '2', traffic='ragged/script.safetensors', label='TP2')
    p.ok('diff', 'ragged.tape', two, '--tap', 'drafts')


# ---- outputs ----

def outputs(p):
    b = base()
    fresh('out')
    p.refused(5, 'nowhere', 'record', b, '--script', SCRIPT, '-o', 'out/nowhere/T.tape', '--level', 'io')
    check(os.listdir('out') == [], f'left behind {os.listdir("out")}')
    os.mkdir('out/T.tape')
    for taken in ('out/T.tape', '/dev/null'):
        p.refused(5, taken, 'record', b, '--script', SCRIPT, '-o', taken, '--level', 'io')
    check(os.listdir('out') == ['T.tape'] and os.listdir('out/T.tape') == [], f'a folder of that name: {os.listdir("out")}')
    # a refusal leaves an older recording alone, a recording replaces it when it is told to
    put(fresh('out'), 'T.tape', 'older')
    p.refused(3, 'nowhere', 'record', b, '--script', 'nowhere', '-o', 'out/T.tape')
    put('.', 'script.tape', 'older')
    p.refused(2, ['script.tape', '--force'], 'record', b, '--script', SCRIPT)
    for command in (['record', b, '--script', SCRIPT], ['import', SCRIPT], ['weights', b], ['manifest', b]):
        p.refused(2, ['out/T.tape', '--force'], *command, '-o', 'out/T.tape', force=False)
    check(get('out', 'T.tape') == get('.', 'script.tape') == b'older', 'a refusal touched an older file')
    p.ok('record', b, '--script', SCRIPT, '-o', 'out/T.tape', '--level', 'io')
    check(os.listdir('out') == ['T.tape'] and get('out', 'T.tape') != b'older', f'not replaced: {os.listdir("out")}')
    os.replace('out/T.tape', 'good.tape')
    put('out', 'T.tape', 'older')
    for command in (['replay', 'good.tape', b], ['export', 'good.tape'], ['recover', 'good.tape'],
                    ['inject', b, '--script', SCRIPT]):
        p.refused(2, ['out/T.tape', '--force'], *command, '-o', 'out/T.tape', force=False)
    p.refused(2, ['out/T.tape', '--force'], 'script', 'out/T.tape', '--model', b, force=False)
    check(get('out', 'T.tape') == b'older', 'a refusal touched an older file')
    os.replace('out/T.tape', 'out/T.tape.part')  # a killed writer's: all there is of that run
    for command in (['record', b, '--script', SCRIPT], ['replay', 'good.tape', b], ['recover', 'good.tape']):
        for _ in range(2):
            p.refused(2, ['out/T.tape.part', 'sparktape recover', '--force'], *command, '-o', 'out/T.tape', force=False)
    check(get('out', 'T.tape.part') == b'older' and os.listdir('out') == ['T.tape.part'], 'a refusal touched a .part')
    os.unlink('out/T.tape.part')
    for command in (
            ['export', 'good.tape', '-o', 'out/nowhere/x.safetensors'], ['export', 'good.tape', '-o', 'out/nowhere/x.npz'],
            ['import', SCRIPT, '-o', 'out/nowhere/x.tape'], ['recover', 'good.tape', '-o', 'out/nowhere/x.tape'],
            ['script', 'out/nowhere/x.safetensors', '--model', b], ['manifest', b, '-o', 'out/nowhere/x.json'],
            ['weights', b, '-o', 'out/nowhere/x.safetensors'], ['replay', 'good.tape', b, '-o', 'out/nowhere/x.tape']):
        p.refused(5, 'nowhere', *command)
    check(os.listdir('out') == [], f'left behind {os.listdir("out")}')


def a_full_disk_leaves_nothing_under_a_final_name(p):
    disk = os.path.abspath(fresh('disk'))
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=64k', 'none', disk]
    if os.geteuid() != 0 or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        print('skip  a_full_disk_leaves_nothing_under_a_final_name: no small file system can be mounted here')
        return
    try:
        base()
        if not os.path.exists('good.tape'):
            p.ok('record', BASE, '--script', SCRIPT, '-o', 'good.tape', '--level', 'io')
        p.refused(5, ['disk/T.tape.part', 'No space', 'recover'], 'record', BASE, '--script', SCRIPT, '-o', 'disk/T.tape')
        check(os.listdir('disk') == ['T.tape.part'], f'record: left behind {os.listdir("disk")}')
        p.ok('recover', 'disk/T.tape.part', '-o', 'saved.tape', exits=(0, 1))  # the rounds before the disk was full
        p.ok('ls', 'saved.tape')
        os.remove('disk/T.tape.part')
        for command in (
                ['export', 'good.tape', '-o', 'disk/x.safetensors'], ['export', 'good.tape', '-o', 'disk/x.npz'],
                ['import', SCRIPT, '-o', 'disk/x.tape'], ['script', 'disk/x.safetensors', '--model', BASE],
                ['weights', BASE, '-o', 'disk/x.safetensors'], ['recover', 'good.tape', '-o', 'disk/x.tape'],
                ['replay', 'good.tape', BASE, '-o', 'disk/x.tape']):
            p.refused(5, [command[-1] if command[0] != 'script' else 'disk/x', 'No space'], *command)
            check(os.listdir('disk') == [], f'{command[0]}: left behind {os.listdir("disk")}')
    finally:
        subprocess.run(['umount', disk])


# ---- every command, with files that are none ----

def every_command_refuses_what_is_no_input(p):
    b = base()
    p.ok('record', b, '--script', SCRIPT, '-o', 'good.tape', '--level', 'io')
    put('.', 'empty', b'')
    put('.', 'random', np.random.default_rng(2).bytes(70000))
    put('.', 'text', 'no tape, no model, no script\n' * 9)
    fresh('folder')
    for turn, bad in enumerate(('missing', 'folder', 'empty', 'random', 'text', '/dev/zero', '/dev/null', 'empty/x', '')):
        fresh('out')
        for command in p.some((
                ['info', bad], ['ls', bad], ['show', bad + ':0/-/drafts'], ['export', bad, '-o', 'out/x.safetensors'],
                ['export', bad, '-o', 'out/x.npz'], ['import', bad, '-o', 'out/x.tape'],
                ['import', SCRIPT, '--identity-from', bad, '-o', 'out/x.tape'],
                ['import', SCRIPT, '--map', bad, '-o', 'out/x.tape'], ['doctor', bad], ['recover', bad, '-o', 'out/x.tape'],
                ['replay', bad, b, '-o', 'out/x.tape'], ['replay', 'good.tape', bad, '-o', 'out/x.tape'],
                ['diff', bad, 'good.tape'], ['diff', 'good.tape', bad],
                ['diff', 'good.tape', 'good.tape', '--forced', '--model', bad], ['browse', bad, '--keys', 'text'],
                ['record', bad, '--script', SCRIPT, '-o', 'out/x.tape'], ['record', b, '--script', bad, '-o', 'out/x.tape'],
                ['script', 'out/x.safetensors', '--model', bad], ['manifest', bad], ['manifest', bad, '-o', 'out/x.json'],
                ['verify', bad], ['verify', b, '--receipt', bad], ['verify', b, '--manifest', bad], ['identity', bad],
                ['weights', bad], ['weights', bad, '-o', 'out/x.safetensors'], ['plan', bad]), turn):
            if command == ['verify', b, '--receipt', 'empty']:
                p.ok(*command, exits=(1,))   # a receipt that lists no shard
                continue
            p.refused((3, 2) if bad == '' else 3, [], *command)
            check(os.listdir('out') == [], f'{command}: left behind {os.listdir("out")}')
    p.refused((2, 3), [], 'synth', 'out/m', '--config', 'missing')
    p.refused(3, [], 'synth', 'out/m', '--config', 'text')
    check(os.listdir('out') == [], f'synth: left behind {os.listdir("out")}')
    p.refused(2, ['base', 'holds'], 'synth', b)
    p.refused(2, 'text', 'synth', 'text')
    p.refused(5, 'missing', 'synth', 'missing/model')


def every_command_refuses_nonsense_arguments(p):
    p.refused(2, 'frobnicate', 'frobnicate')
    commands = ('synth script manifest verify identity weights plan arms record replay diff browse info ls show export '
                'import doctor recover')
    for c in commands.split():
        p.refused(2, '--nonsense', c, '--nonsense')
        p.refused(2, [], c, *['x'] * 9)
        p.refused(2, '--threads', c, 'x', 'y', '--threads', 'many')
        if c != 'arms':
            p.refused(2, [], c)
        r = p.ok(c, '--help')
        check(c in r.stdout and r.stderr == '', f'{c} --help: {r.stdout[:200]}')


# ---- damaged tapes ----

def damaged_tapes_cost_a_line(p):
    """Flipped and cut tapes: every reader ends by itself with a known status and at most a line."""
    b, g = base(), np.random.default_rng(5)
    p.ok('record', b, '--script', SCRIPT, '-o', 'good.tape')
    p.ok('record', b, '--script', SCRIPT, '-o', 'other.tape')
    data = get('.', 'good.tape')
    ends = [0, 1, 7, 8, 100, len(data) // 2, len(data) - 1] + [int(x) for x in g.integers(0, len(data), 3)]
    flips = [0, 9, 40, 300, len(data) - 2, len(data) - 40] + [int(x) for x in g.integers(0, len(data), 4)]
    def flip(n): return data[:n] + bytes([data[n] ^ 1 << int(g.integers(8))]) + data[n + 1:]
    spoiled = [('cut', n, data[:n]) for n in ends] + [('flip', n, flip(n)) for n in flips]
    for turn, (kind, n, bad) in enumerate(spoiled):
        put('.', 'bad.tape', bad)
        fresh('out')
        for command in p.some((
                ['info', 'bad.tape'], ['ls', 'bad.tape'], ['show', 'bad.tape:3/-/drafts'],
                ['export', 'bad.tape', '-o', 'out/x.safetensors'],
                ['import', SCRIPT, '--identity-from', 'bad.tape', '-o', 'out/i.tape'],
                ['replay', 'bad.tape', b, '-o', 'out/r.tape', '--level', 'io'], ['diff', 'bad.tape', 'other.tape'],
                ['doctor', 'bad.tape'], ['recover', 'bad.tape', '-o', 'out/c.tape'],
                ['browse', 'bad.tape', '--keys', '/dev/null']), turn):
            r = p.run(*command)
            lines = [x for x in r.stderr.splitlines() if x.strip()]
            where = f'{kind} at {n}: {command}'
            check(r.returncode in (0, 1, 3, 4), f'{where}: exit {r.returncode}\n{r.stderr[-600:]}')
            check('Sanitizer' not in r.stderr and 'runtime error' not in r.stderr, f'{where}\n{r.stderr[-900:]}')
            check(r.returncode < 2 or len(lines) == 1, f'{where}: {len(lines)} lines:\n{r.stderr[-600:]}')
            check(not any(x.endswith('.part') for x in os.listdir('out')), f'{where}: left {os.listdir("out")}')
            if command[0] == 'doctor':
                check(r.returncode in (1, 3), f'{kind} at {n}: doctor found nothing')
            if command[0] == 'recover' and r.returncode == 3:
                check(not os.path.exists('out/c.tape'), f'{kind} at {n}: recover wrote a file and said 3')
            if command[0] == 'recover' and r.returncode < 2:
                p.ok('doctor', 'out/c.tape')
    p.ok('doctor', 'good.tape')


if __name__ == '__main__':
    lib.main([tensors, no_tensor_may_hold_nan, shards, index, folders_without_an_index, what_is_ignored, config, scripts,
              scripts_that_run, options, a_cut_inside_a_group_is_named, a_ragged_vocabulary_runs_sharded, outputs,
              a_full_disk_leaves_nothing_under_a_final_name, every_command_refuses_what_is_no_input,
              every_command_refuses_nonsense_arguments, damaged_tapes_cost_a_line])
