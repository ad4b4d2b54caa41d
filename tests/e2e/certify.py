"""certify passes clean tapes, and names the op and the element of a value that was changed: certify.py BINARY [TEST ...]"""
import itertools, json, os, re, shutil, signal, subprocess, time
import numpy as np
import lib
from lib import as_float, check

SEED = 5
ROUNDS = 6  # of the tape whose values are changed: so many at a time


def model(p, name='tiny'):
    if not os.path.isdir(name):
        p.ok('synth', name, '--seed', SEED, '--config', name)
    return name


def script(p, rounds, slots=2, seed=SEED, name='tiny'):
    path = f'{name}-{rounds}-{slots}-{seed}.safetensors'
    if not os.path.exists(path):
        p.ok('script', path, '--model', model(p, name), '--rounds', rounds, '--slots', slots, '--seed', seed)
    return path


def record(p, tape, *options, rounds=2, slots=2, seed=SEED, name='tiny'):
    p.ok('record', model(p, name), '--script', script(p, rounds, slots, seed, name), '-o', tape, *options, timeout=600)
    return tape


def certify(p, tape, *options, exits=(0, 1), name='tiny', timeout=600):
    r = p.ok('certify', tape, name, '--json', *options, exits=exits, timeout=timeout)
    result = json.loads(r.stdout)
    check((r.returncode == 0) == (result['verdict'] == 'PASS'), f'exit {r.returncode}, verdict {result["verdict"]}')
    check(result['elements'] == result['equal'] + result['flip'] + result['illegal'], 'the sums do not add up')
    return result


def passes(r, what):
    check(r['verdict'] == 'PASS' and r['illegal'] == 0 and not r['origins'] and r['elements'] > 10000,
          f'{what}: {r["verdict"]}, {r["illegal"]} illegal of {r["elements"]}: {r["origins"][:3]}')


# ---- clean ----

def clean_tapes_pass(p):
    runs = [('mirror64', 1, 'exact', 'eager'), ('mirror', 1, 'fused', 'eager'), ('native-packed', 1, 'exact', 'graph'),
            ('native-packed', 2, 'exact', 'eager'), ('native-packed', 2, 'fused', 'graph'),
            ('native-expanded', 1, 'fused', 'eager'), ('native-hybrid', 2, 'exact', 'graph')]
    for i, (arm, tp, combine, mode) in enumerate(runs):
        record(p, 'clean.tape', '--level', 'deep', '--arm', arm, '--tp', tp, '--combine', combine, '--mode', mode, rounds=6,
               slots=3, seed=i)
        r = certify(p, 'clean.tape')
        passes(r, f'{arm} tp {tp} {combine} {mode}')
        check(not r['not_judged'] and not r['findings'], f'{arm}: {r["not_judged"]} {r["findings"]}')
        check((r['flip'] == 0) == (arm == 'mirror64'), f'{arm}: {r["flip"]} flips')


def a_layout_of_the_experts_changes_no_bit(p):
    record(p, 'plain.tape', '--level', 'deep', '--arm', 'native-hybrid', '--tp', 2)
    record(p, 'laid.tape', '--level', 'deep', '--arm', 'native-hybrid-kx', '--tp', 2)
    said = p.ok('diff', 'plain.tape', 'laid.tape').stdout
    check(said.startswith('SAME') and 'native-hybrid-kx' in said and 'first | kx' in said, said)
    passes(certify(p, 'laid.tape'), 'native-hybrid-kx')
    record(p, 'plain.tape', '--level', 'deep', '--arm', 'native-packed', '--tp', 2)
    record(p, 'whole.tape', '--level', 'deep', '--arm', 'native-hybrid-kx2', '--tp', 2)
    check(p.ok('diff', 'plain.tape', 'whole.tape').stdout.startswith('SAME'), 'native-hybrid-kx2 is not native-packed')
    passes(certify(p, 'whole.tape'), 'native-hybrid-kx2')


# ---- changed by hand ----

GIVEN = re.compile(r'\.(taps|pos|slots|anchor|n_out)$')


def tape_name(export):
    """The value's name on the tape, its round and its slot."""
    r, rest = re.match(r'round\.(\d+)\.(.*)', export).groups()
    if m := re.match(r'insert\.(\d+)\.(.*)', rest):
        return m[2], int(r), int(m[1])
    if m := re.match(r'window\.(\d+)\.(s\d+)', rest):
        return m[2] + '.window', int(r), int(m[1])
    return rest, int(r), None


class Export:
    """The bytes of an export, in which single elements are changed in place."""

    def __init__(self, p, tape):
        p.ok('export', tape, '-o', 'export.safetensors')
        with open('export.safetensors', 'rb') as f:
            self.data = bytearray(f.read())
        n = int.from_bytes(self.data[:8], 'little')
        self.head, self.start = json.loads(self.data[8:8 + n]), 8 + n
        self.values = lib.read('export.safetensors')[0]

    def change(self, *changes):
        """Writes the export with other bits in some elements: changes of (name, index, to)."""
        was = []
        for name, index, to in changes:
            dtype, (first, _) = self.head[name]['dtype'], self.head[name]['data_offsets']
            size = {'BF16': 2, 'F32': 4, 'I32': 4}[dtype]
            at = self.start + first + int(index) * size
            was.append((at, bytes(self.data[at:at + size])))
            self.data[at:at + size] = int(to).to_bytes(size, 'little')
        with open('changed.safetensors', 'wb') as f:
            f.write(self.data)
        for at, old in was:
            self.data[at:at + len(old)] = old

    def bits(self, name):
        a = np.ascontiguousarray(self.values[name][1])
        return a.view(np.uint16 if self.values[name][0] == 'BF16' else np.uint32).reshape(-1)


def judged(p, tape, export, *changes, options=(), **kw):
    export.change(*changes)
    p.ok('import', 'changed.safetensors', '-o', 'changed.tape', '--identity-from', tape)
    r = certify(p, 'changed.tape', *options, **kw)
    os.remove('changed.tape')
    return r


def wanted_step(dtype):
    return {'BF16': 2, 'F32': 2 << 16, 'I32': 1}[dtype]


def check_named(r, name, index, ops):
    """The element's op is the only origin of its round, and the element is all that is illegal of it."""
    value, round_, slot = tape_name(name)
    found = [o for o in r['origins'] if o['round'] == round_]
    check([(o['op'], o['slot']) for o in found] == [(ops[value], slot)],
          f'{name}[{index}]: origins {found}, inherited {[(o["op"], o["round"], o["from"]) for o in r["inherited"]]}')
    o = found[0]
    check(o['outputs'] == [value] and o['worst']['value'] == value and o['worst']['index'] == index and o['illegal'] == 1,
          f'{name}[{index}]: {o}')
    check(r['verdict'] == 'FAIL', name)


def spread(names):
    """Names in lists to be changed together, no two of a round; every value once. Rows of the rings reach into later
    rounds: alone."""
    by_value, rows, by_round = {}, [], [[] for _ in range(ROUNDS)]
    for name in names:
        value, round_, _ = tape_name(name)
        by_value.setdefault(value, {})[round_] = name
    for value, rounds in by_value.items():
        round_ = min(rounds, key=lambda r: len(by_round[r]))
        (rows if value.endswith('.main_kv') else by_round[round_]).append(rounds[round_])
    return [[name] for name in rows] + [[n for n in names if n] for names in itertools.zip_longest(*by_round)]


def changes_are_named(p, *options):
    """Of every value the largest element, and another one where that is not admissible either. Rounds are judged alone, so
    that one tape holds a change in each of its rounds."""
    tape = record(p, 'source.tape', '--level', 'deep', *options, rounds=ROUNDS)
    clean = certify(p, tape)
    passes(clean, 'source')
    ops = {s['value']: s['op'] for s in clean['ops']}
    export, draw, other = Export(p, tape), np.random.default_rng(SEED), 0
    for names in spread([name for name in export.values if not GIVEN.search(name)]):
        largest, any_one = [], []
        for name in names:
            bits, size = export.bits(name), np.abs(as_float(export.values[name])).reshape(-1)
            for index, to in ((int(size.argmax()), largest), (int(draw.integers(len(bits))), any_one)):
                to.append((name, index, int(bits[index]) + wanted_step(export.values[name][0])))
        # a change that has the tape to itself: what later rounds inherit of it is another test's
        alone = ('--rounds', tape_name(names[0])[1]) if len(names) == 1 else ()
        r = judged(p, tape, export, *largest, options=alone)
        check(len(r['origins']) == len(names), f'{names}: {r["origins"]}')
        for name, index, _ in largest:
            check_named(r, name, index, ops)
        r = judged(p, tape, export, *any_one, options=alone)
        for name, index, _ in any_one:
            if any(o['round'] == tape_name(name)[1] for o in r['origins'] + r['inherited']):
                check_named(r, name, index, ops)
                other += 1
    print(f'      {len(ops)} values, {other} more elements')


def a_change_is_named_on_one_rank(p):
    changes_are_named(p, '--arm', 'native-packed', '--combine', 'fused')


def a_change_is_named_on_two_ranks(p):
    changes_are_named(p, '--arm', 'native-expanded', '--tp', 2)


def the_rank_of_a_shard_is_named(p):
    tape = record(p, 'two.tape', '--level', 'deep', '--tp', 2)
    export = Export(p, tape)
    for name in ('round.0.s1.attn.wo_a', 'round.0.s0.ffn.up', 'round.1.head.logits', 'round.0.s2.attn_out'):
        dtype, a = export.values[name]
        bits, half = export.bits(name).reshape(a.shape), a.shape[-1] // 2
        for rank in (0, 1):
            at = np.abs(as_float(export.values[name])).reshape(-1, a.shape[-1])[:, rank * half:rank * half + half].argmax()
            index = int(at // half * a.shape[-1] + rank * half + at % half)
            r = judged(p, tape, export, (name, index, int(bits.reshape(-1)[index]) + wanted_step(dtype)),
                       options=('--rounds', tape_name(name)[1]))
            wanted = None if 'attn_out' in name else rank
            check(r['origins'][0]['rank'] == wanted, f'{name} rank {rank}: {r["origins"][0]}')


def odd_numbers_are_named(p):
    """NaN, infinity, an id that does not exist, two experts the same, another token."""
    tape = record(p, 'odd.tape', '--level', 'deep')
    ops = {s['value']: s['op'] for s in certify(p, tape)['ops']}
    export = Export(p, tape)
    ids, tokens = export.values['round.1.s1.ffn.ids'][1].reshape(-1), export.values['round.1.drafts'][1].reshape(-1)
    for name, index, to in (('round.1.s1.attn.qr', 70, 0x7fc0), ('round.1.s1.attn.kv', 33, 0x7f80),
                            ('round.0.head.logits', 5, 0xffc00000), ('round.1.s1.ffn.ids', 1, 4000000),
                            ('round.1.s1.ffn.ids', 0, int(ids[1])), ('round.1.ids', 2, 0xffffffff),
                            ('round.1.drafts', 0, (int(tokens[0]) + 1) % 256),
                            ('round.1.drafts', len(tokens) - 1, 77777777),
                            ('round.0.insert.0.s0.main_kv', 3, 0x7fc0), ('round.1.confidence', 0, 0x7f800000)):
        r = judged(p, tape, export, (name, index, to))
        value, round_, _ = tape_name(name)
        o = r['origins'][0]
        check(len(r['origins']) == 1 and (o['op'], o['round'], o['worst']['index']) == (ops[value], round_, index),
              f'{name}: {r["origins"]}')


def findings_are_the_same_in_shards(p):
    """A row that goes wrong in an early round is not an origin of later ones, whoever judges them."""
    tape = record(p, 'long.tape', '--level', 'deep', rounds=9)
    export = Export(p, tape)
    name = 'round.0.insert.0.s1.main_kv'
    index = int(np.abs(as_float(export.values[name])).argmax())
    export.change((name, index, int(export.bits(name)[index]) + 2))
    p.ok('import', 'changed.safetensors', '-o', 'row.tape', '--identity-from', tape)
    whole = certify(p, 'row.tape')
    check([(o['round'], o['op']) for o in whole['origins']] == [(0, 's1.main_kv')], str(whole['origins']))
    windows = [o for o in whole['inherited'] if o['op'] == 's1.window']
    check(len(windows) > 3 and all(o['from'] == 's1.main_kv' for o in windows), str(whole['inherited'][:2]))
    running = [subprocess.Popen([p.path, 'certify', 'row.tape', 'tiny', '--json', '--shard', f'{i}/3', '--threads', '1'],
                                env=p.env, stdout=subprocess.PIPE, text=True) for i in (1, 2, 3)]
    parts = [json.loads(r.communicate(timeout=300)[0]) for r in running]
    for key in ('rounds', 'elements', 'equal', 'flip', 'illegal', 'events', 'values'):
        check(sum(r[key] for r in parts) == whole[key], f'{key}: {[r[key] for r in parts]}, wanted {whole[key]}')
    for key in ('origins', 'inherited'):
        merged = sorted((json.dumps(o, sort_keys=True) for r in parts for o in r[key]))
        check(merged == sorted(json.dumps(o, sort_keys=True) for o in whole[key]), f'{key} of the parts differ')
    some = certify(p, 'row.tape', '--rounds', '4-5')
    check(some['rounds'] == 2 and not some['origins'] and some['inherited'], str(some['origins']))
    tapped = certify(p, 'row.tape', '--tap', 's1.window')
    check(not tapped['origins'] and len(tapped['inherited']) == len(windows), str(tapped['origins']))


def a_near_tie_is_listed_with_its_margin(p):
    """Two experts with the same gate row and bias: one ulp of a score decides which is chosen."""
    if not os.path.isdir('twins'):
        shutil.copytree(model(p), 'twins')
    for tensor in ('mtp.1.ffn.gate.weight', 'mtp.1.ffn.gate.bias'):
        copy_row('twins', tensor, 1, 0)
    p.ok('record', 'twins', '--script', script(p, 6, 3), '-o', 'twins.tape', '--level', 'deep')
    export = Export(p, 'twins.tape')
    value = 'round.1.s1.ffn.scores'
    ids, scores = (export.values[n][1] for n in ('round.1.s1.ffn.ids', value))
    row = next(i for i in range(len(ids)) if 1 not in ids[i] and 0 in ids[i] or {0, 1} <= set(ids[i].tolist()))
    index = row * scores.shape[1] + 1
    check(scores[row, 0] == scores[row, 1], 'the twins have other scores')
    to = int(export.bits(value)[index]) + 1
    r = judged(p, 'twins.tape', export, (value, index, to), options=('--tap', 's1.ffn.scores'), name='twins')
    check(r['verdict'] == 'PASS' and r['ties'], str(r)[:400])
    tie = r['ties'][0]
    check((tie['value'], tie['row'], tie['got'], tie['exact'], tie['margin']) == ('s1.ffn.ids', row, 1, 0, 0), str(tie))


def copy_row(folder, tensor, to, source):
    for path in (os.path.join(folder, f) for f in os.listdir(folder) if f.endswith('.safetensors')):
        with open(path, 'r+b') as f:
            n = int.from_bytes(f.read(8), 'little')
            entry = json.loads(f.read(n)).get(tensor)
            if entry:
                first, end = (8 + n + x for x in entry['data_offsets'])
                bytes_ = (end - first) // entry['shape'][0]
                f.seek(first + source * bytes_)
                row = f.read(bytes_)
                f.seek(first + to * bytes_)
                f.write(row)


# ---- what cannot be judged ----

def what_is_not_judged_is_named(p):
    v1 = certify(p, record(p, 'v1.tape', '--level', 'v1'))
    passes(v1, 'v1')
    io = certify(p, record(p, 'io.tape', '--level', 'io'), exits=(1,))
    check(io['verdict'] == 'FAIL' and io['elements'] == 0, str(io)[:400])
    check({n['value'] for n in io['not_judged']} >= {'drafts', 'confidence'}, str(io['not_judged']))
    hashes = certify(p, record(p, 'hash.tape', '--level', 'deep', '--tap', '*=hash'), exits=(1,))
    check(hashes['verdict'] == 'FAIL' and hashes['elements'] == 0 and hashes['not_judged'], str(hashes)[:400])
    text = p.ok('certify', 'io.tape', 'tiny', exits=(1,)).stdout
    check('nothing judged' in text and 'not judged' in text, text)


def redacted_tapes_are_judged_without_tokens(p):
    record(p, 'red.tape', '--level', 'deep', '--redact', 'key')
    r = certify(p, 'red.tape')
    passes(r, 'redacted')
    names = {n['value']: n['why'] for n in r['not_judged']}
    check(set(names) >= {'ids', 'drafts', 'head.logits', 'head.biased'}, str(names))
    check('redacted' in names['drafts'], names['drafts'])


def zeros_and_nan_prove_nothing(p):
    """taps of zeros are legal and give a main_x of zeros: equal, and a finding all the same."""
    tape = record(p, 'zero.tape', '--level', 'deep', rounds=1, slots=1)
    export = Export(p, tape)
    for name in ('round.0.insert.0.taps', 'round.0.insert.0.main_x'):
        first, end = export.head[name]['data_offsets']
        export.data[export.start + first:export.start + end] = bytes(end - first)
    with open('zero.safetensors', 'wb') as f:
        f.write(export.data)
    p.ok('import', 'zero.safetensors', '-o', 'zeros.tape', '--identity-from', tape)
    r = certify(p, 'zeros.tape', '--tap', 'main_x', exits=(1,))
    check(r['illegal'] == 0 and r['verdict'] == 'FAIL' and r['findings'][0]['value'] == 'main_x', str(r)[:300])


def without(p, export, *names):
    """The tape of the export without the values of these names: what is missing is named."""
    data = bytes(export.data)
    for name in names:
        at = data.index(f'"{name}"'.encode()) + len(name)
        data = data[:at] + b'9' + data[at + 1:]
    with open('lost.safetensors', 'wb') as f:
        f.write(data)
    p.ok('import', 'lost.safetensors', '-o', 'lost.tape', '--identity-from', 'whole.tape', '--force')
    return certify(p, 'lost.tape', exits=(0, 1))


def a_step_without_its_inputs_is_no_pass(p):
    export = Export(p, record(p, 'whole.tape', '--level', 'deep'))
    for missing in ('draft.slots', 'draft.anchor', 'draft.pos', 'draft.n_out'):
        r = without(p, export, f'round.1.{missing}')
        check(r['illegal'] == 0 and r['verdict'] == 'FAIL' and missing in r['findings'][0]['why'], str(r)[:400])
        why = {n['value']: n['why'] for n in r['not_judged']}
        for value in ('ids', 's1.attn.q', 'drafts', 's0.window'):
            check(why[value] == f'{missing} is not recorded', str(why))


def what_a_value_lacks_is_named(p):
    export = Export(p, record(p, 'whole.tape', '--level', 'deep'))
    for value, lost, named in (('main_x', ('insert.0.taps',), 'taps'), ('s0.main_kv', ('insert.0.pos',), 'pos'),
                               ('s1.window', ('insert.0.s1.main_kv',), 's1.main_kv'),
                               ('s1.attn.o', ('insert.0.s1.main_kv', 'window.0.s1'), 's1.window')):
        r = without(p, export, *(f'round.0.{name}' for name in lost))
        why = [n['why'] for n in r['not_judged'] if n['value'] == value]
        check(why and named in why[0].replace(',', '').split() and 'not recorded' in why[0], f'{lost}: {r["not_judged"]}')


def a_value_of_another_shape_is_named(p):
    """Rows and columns of a main_x change places."""
    export = Export(p, record(p, 'whole.tape', '--level', 'deep'))
    rows, dim = export.head['round.0.insert.0.main_x']['shape']
    at = export.data.index(b'"round.0.insert.0.main_x"')
    old, new = f'[{rows},{dim}]'.encode(), f'[{dim},{rows}]'.encode()
    check(old in export.data[at:at + 200], str(bytes(export.data[at:at + 200])))
    with open('turned.safetensors', 'wb') as f:
        f.write(bytes(export.data[:at]) + bytes(export.data[at:]).replace(old, new, 1))
    p.ok('import', 'turned.safetensors', '-o', 'turned.tape', '--identity-from', 'whole.tape')
    p.refused(3, f'round 0 slot 0 main_x: found BF16 [{dim}, {rows}], wanted BF16 [{rows}, {dim}]', 'certify',
              'turned.tape', 'tiny')


def a_damaged_tape_is_no_pass(p):
    """Cut off behind its first rounds: what is there is judged, and is not said to be all."""
    record(p, 'cut.tape', '--level', 'deep', rounds=9)
    with open('cut.tape', 'r+b') as f:
        f.truncate(os.path.getsize('cut.tape') * 2 // 3)
    r = p.ok('certify', 'cut.tape', 'tiny', '--json', exits=(1,))
    result = json.loads(r.stdout)
    check(result['verdict'] == 'PARTIAL' and result['damaged'] and result['elements'], r.stdout[:300])
    check(not result['illegal'], str(result['origins'][:2]))
    check('unfinished' in r.stderr or 'damaged' in r.stderr, r.stderr)


def an_interrupt_leaves_a_partial_report(p):
    record(p, 'stop.tape', '--level', 'deep', rounds=60, slots=4)
    q = subprocess.Popen([p.path, 'certify', 'stop.tape', 'tiny', '--json', '--sharpness'], env=p.env,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    q.send_signal(signal.SIGINT)
    out, err = q.communicate(timeout=120)
    r = json.loads(out)
    check(q.returncode == 1 and r['verdict'] == 'PARTIAL', f'exit {q.returncode}, {r["verdict"]}: {err}')
    check(r['partial'] is True and r['rounds'] < r['rounds_wanted'] == 60, f'{r["rounds"]} of {r["rounds_wanted"]}')


def the_command_line_is_checked(p):
    record(p, 'words.tape', '--level', 'deep')
    for words, text in ((('--shard', '3/2'), '--shard'), (('--shard', '1'), '--shard'), (('--bound', 'loose'), '--bound'),
                        (('--rounds', '7-x'), '--rounds'), (('--rounds', '9000'), '--rounds'),
                        (('--tap', 'nothing'), '--tap')):
        p.refused(2, text, 'certify', 'words.tape', 'tiny', *words)
    if not os.path.isdir('other'):
        p.ok('synth', 'other', '--seed', SEED + 1, '--config', 'tiny')
    p.refused(4, 'checkpoint', 'certify', 'words.tape', 'other')
    worst = certify(p, 'words.tape', '--bound', 'worst')
    passes(worst, 'worst')
    check(worst['bound'] == 'worst', worst['bound'])
    text = p.ok('certify', 'words.tape', 'tiny', '--bound', 'sharp').stdout
    check('\nbound: sharp' in text, text)
    sharp = certify(p, 'words.tape', '--sharpness')
    for s in sharp['ops']:
        one, two = s['sharpness']
        check(one['tried'] and two['tried'] and two['admitted'] <= one['admitted'] + 1, f'{s["value"]}: {one}, {two}')
    tried, admitted = (sum(s['sharpness'][1][k] for s in sharp['ops']) for k in ('tried', 'admitted'))
    check(admitted < 0.01 * tried, f'{admitted} of {tried} neighbours 2 ulps away would pass')


TESTS = [clean_tapes_pass, a_layout_of_the_experts_changes_no_bit, a_change_is_named_on_one_rank,
         a_change_is_named_on_two_ranks, the_rank_of_a_shard_is_named,
         odd_numbers_are_named, a_near_tie_is_listed_with_its_margin, findings_are_the_same_in_shards,
         what_is_not_judged_is_named, redacted_tapes_are_judged_without_tokens, zeros_and_nan_prove_nothing,
         a_step_without_its_inputs_is_no_pass, what_a_value_lacks_is_named, a_value_of_another_shape_is_named,
         a_damaged_tape_is_no_pass, an_interrupt_leaves_a_partial_report, the_command_line_is_checked]

if __name__ == '__main__':
    lib.main(TESTS)
