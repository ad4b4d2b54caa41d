"""The arms with EXL3 weights end to end: exl3.py BINARY [TEST ...]

A delivery of random tiles (every bit pattern is one) beside a tiny checkpoint: each arm records, its tapes certify and
replay, and it differs from the official arm by its weights alone. What a checkpoint lacks is named."""
import json, os, shutil, struct
import numpy as np
from lib import check, main

MUL1, TILE, BLOCK = -2082680531, 16, 128
ARMS = (('k2-tp2',), ('k2-head',), ('native-experts-packed',), ('native-packed', '--head', 'k6'))


def padded(n):
    return -(-n // BLOCK) * BLOCK


def shapes():
    """Name, outputs, inputs and bits of every weight of the tiny config that EXL3 holds."""
    c = json.load(open('tiny/config.json'))
    dim, inter, q, hd = c['dim'], c['moe_inter_dim'], c['q_lora_rank'], c['head_dim']
    yield 'head', c['vocab_size'], dim, 6
    yield 'mtp.0.main_proj', dim, dim * len(c['dspark_target_layer_ids']), 5
    for s in range(c['n_mtp_layers']):
        at = f'mtp.{s}.'
        yield at + 'attn.wq_a', q, dim, 5
        yield at + 'attn.wkv', hd, dim, 5
        yield at + 'attn.wq_b', c['n_heads'] * hd, q, 5
        yield at + 'attn.wo_b', dim, c['o_groups'] * c['o_lora_rank'], 5
        for of, bits in [('shared_experts', 5)] + [(f'experts.{x}', 2) for x in range(c['dspark_n_routed_experts'])]:
            yield at + f'ffn.{of}.w1', inter, dim, bits
            yield at + f'ffn.{of}.w3', inter, dim, bits
            yield at + f'ffn.{of}.w2', dim, inter, bits


def deliver(folder, wanted=lambda name: True):
    """Adds a shard of random EXL3 weights, and its names to the index."""
    rng, header, data, at = np.random.default_rng(5), {}, [], 0
    for name, n, k, bits in shapes():
        if not wanted(name):
            continue
        n, k = padded(n), padded(k)
        sign = lambda m: rng.choice((-1.0, 1.0), m)
        parts = {
            'trellis': rng.integers(0, 65536, (k // TILE, n // TILE, TILE * bits)).astype('<u2'),
            'suh': (sign(k) * rng.uniform(0.03, 0.05, k)).astype('<f2'),
            'svh': (sign(n) * rng.uniform(0.75, 1.25, n)).astype('<f2'),
            'mul1': np.array(MUL1, '<i4'),
        }
        for part, a in parts.items():
            dtype = {'trellis': 'I16', 'mul1': 'I32'}.get(part, 'F16')
            header[f'{name}.{part}'] = {'dtype': dtype, 'shape': list(a.shape), 'data_offsets': [at, at + a.nbytes]}
            data.append(a.tobytes())
            at += a.nbytes
    text = json.dumps(header).encode()
    with open(f'{folder}/exl3-1.safetensors', 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + b''.join(data))
    path = f'{folder}/model.safetensors.index.json'
    index = json.load(open(path))
    index['weight_map'].update({name: 'exl3-1.safetensors' for name in header})
    json.dump(index, open(path, 'w'))


def model(p):
    if os.path.exists('s.safetensors'):
        return
    p.ok('synth', 'tiny', '--config', 'tiny', '--seed', 3)
    shutil.copytree('tiny', 'head')
    deliver('tiny')
    deliver('head', lambda name: name == 'head')
    p.ok('script', 's.safetensors', '--model', 'tiny', '--rounds', 3, '--slots', 2)


def record(p, arm, *options):
    model(p)
    name = '-'.join(str(x).strip('-') for x in arm + options) + '.tape'
    if not os.path.exists(name):
        p.ok('record', 'tiny', '--script', 's.safetensors', '--level', 'deep', '-o', name, '--arm', *arm, *options)
    return name


def every_arm_certifies_on_one_rank_and_on_two(p):
    for arm in ARMS:
        for options in ((), ('--tp', 2), ('--tp', 2, '--combine', 'fused')):
            said = json.loads(p.ok('certify', record(p, arm, *options), 'tiny', '--json').stdout)
            check(said['verdict'] == 'PASS' and said['illegal'] == 0 and said['rounds'] == 3, f'{arm} {options}: {said}')


def a_tape_says_its_arm_and_replays_to_the_same_bits(p):
    for arm in (ARMS[0], ARMS[3]):
        tape = record(p, arm, '--tp', 2)
        check('SAME' in p.ok('replay', tape, 'tiny', '-o', f'again-{tape}').stdout, tape)
    head = json.loads(p.ok('identity', 'tiny', '--arm', 'k2-tp2').stdout)
    check(head['arm']['experts'] == head['arm']['dense'] == head['arm']['head'] == 'exl3', head)
    check(head['head']['tensor'] == 'head.trellis' and head['head']['from'] == 'exl3', head)


def the_graph_has_the_eager_bits_and_the_weights_are_what_differs(p):
    tape = record(p, ARMS[0], '--tp', 2)
    said = json.loads(p.ok('parity', tape, 'tiny', '--arms', 'k2-tp2,native-packed', '--json').stdout)
    check(said['verdict'] == 'PASS', said)
    check('k2-tp2' in p.ok('diff', tape, record(p, ('native-packed',), '--tp', 2), exits=(1,)).stdout, 'diff names no arm')


def sums_in_double_are_certified_by_their_bits(p):
    said = json.loads(p.ok('certify', record(p, ARMS[0], '--acc', 'f64'), 'tiny', '--json').stdout)
    check(said['verdict'] == 'PASS' and said['equal'] == said['elements'], said)


def a_decoded_weight_is_the_stored_one(p):
    model(p)
    p.ok('weights', 'tiny', 'mtp.0.attn.wkv.trellis', '--decode', '-o', 'wkv.safetensors')
    raw = open('wkv.safetensors', 'rb').read()
    n = struct.unpack('<Q', raw[:8])[0]
    entry = json.loads(raw[8:8 + n])['mtp.0.attn.wkv.trellis']
    c = json.load(open('tiny/config.json'))
    check(entry['dtype'] == 'F32' and entry['shape'] == [c['dim'], c['head_dim']], entry)
    w = np.frombuffer(raw[8 + n:], '<f4').reshape(entry['shape'])
    # about the mean of suh: svh and the codebook's RMS are 1
    check(0.03 < w.std() < 0.05 and abs(w.mean()) < 0.002, f'std {w.std()}, mean {w.mean()}')


def a_dump_is_classified_by_the_weights_it_was_made_with(p):
    model(p)
    p.ok('script', 'long.safetensors', '--model', 'tiny', '--rounds', 8, '--slots', 3)
    for arm, *options in (('k2-tp2', '--tp', 2), ('native-packed', '--tp', 2)):
        p.ok('record', 'tiny', '--script', 'long.safetensors', '--level', 'v1', '-o', f'v1-{arm}.tape', '--arm', arm,
             *options)
    own = json.loads(p.ok('classify', 'v1-k2-tp2.tape', 'tiny', '--own', '--json').stdout)
    check(own['verdict'] == 'PASS' and own['own'] == 'k2-tp2' and own['gates']['own_logit_flags']['of'] > 0, own['gates'])
    official = json.loads(p.ok('classify', 'v1-k2-tp2.tape', 'tiny', '--json', exits=(1,)).stdout)
    check(official['own'] is None and official['gates']['state_flags']['figure'] > 0, official['gates'])
    text = [p.ok('classify', f'v1-{arm}.tape', 'tiny', *options, exits=(0, 1)).stdout
            for arm, *options in (('k2-tp2',), ('k2-tp2', '--own'), ('native-packed',))]
    check(['--own takes' in t for t in text] == [True, False, False], '\n'.join(text))
    p.refused(2, ['v1-native-packed.tape', '--own', 'native-packed', 'k2-tp2'], 'classify', 'v1-k2-tp2.tape',
              'v1-native-packed.tape', 'tiny', '--own')


def what_a_checkpoint_lacks_is_named(p):
    model(p)
    p.ok('record', 'head', '--script', 's.safetensors', '-o', 'k6.tape', '--arm', 'native-packed', '--head', 'k6')
    p.refused(4, ['k2-tp2', 'head has no', '.trellis', 'sparktape quantize'], 'record', 'head', '--script', 's.safetensors',
              '-o', 'no.tape', '--arm', 'k2-tp2')
    p.refused(2, ['--head official', 'k2-tp2'], 'record', 'tiny', '--script', 's.safetensors', '-o', 'no.tape', '--arm',
              'k2-tp2', '--head', 'official')
    check(not os.path.exists('no.tape') and not os.path.exists('no.tape.part'), 'a refusal left a tape')
    runs = json.loads(p.ok('parity', 'k6.tape', 'head', '--json').stdout)
    check('k2-tp2' not in json.dumps(runs), 'parity runs an arm that cannot be')


if __name__ == '__main__':
    main([every_arm_certifies_on_one_rank_and_on_two, a_tape_says_its_arm_and_replays_to_the_same_bits,
          the_graph_has_the_eager_bits_and_the_weights_are_what_differs, sums_in_double_are_certified_by_their_bits,
          a_decoded_weight_is_the_stored_one,
          a_dump_is_classified_by_the_weights_it_was_made_with, what_a_checkpoint_lacks_is_named])
