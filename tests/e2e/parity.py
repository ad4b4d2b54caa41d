"""Parity of many runs over one tape, poison, and the first round that differs: parity.py BINARY [TEST ...]"""
import json, os, re
from lib import check, main


def model(p):
    if not os.path.isdir('m'):
        p.ok('synth', 'm', '--seed', 5, '--config', 'tiny')
        p.ok('script', 's.safetensors', '--model', 'm', '--rounds', 6, '--slots', 2, '--seed', 8)
    return 'm'


def record(p, tape='t.tape', *options):
    p.ok('record', model(p), '--script', 's.safetensors', '-o', tape, '--threads', 1, *options)
    return tape


def parity(p, tape, *options, exits=(0,)):
    return json.loads(p.ok('parity', tape, model(p), '--json', *options, exits=exits, timeout=300).stdout)


def column(r, name):
    found = [c for c in r['columns'] if c['name'] == name]
    check(len(found) == 1, f'{name} is not one of {[c["name"] for c in r["columns"]]}')
    return found[0]


def every_column_is_equal_or_admissible(p):
    few = ('--arms', 'native-packed,mirror,mirror64')
    for arms, *options in (((), '--level', 'deep'), (few, '--level', 'deep', '--tp', 2, '--mode', 'graph'),
                           (few, '--level', 'io')):
        r = parity(p, record(p, 't.tape', *options), '--poison', *arms)
        check(r['verdict'] == 'PASS' and r['rounds'] == 6 and r['recorded_run'], str(r))
        names = [c['name'] for c in r['columns']]
        for mode in ('eager', 'graph'):
            for tp in (1, 2):
                check(f'native-packed {mode} tp{tp}' in names, str(names))
        check(column(r, 'mirror64 eager tp1')['reference'] and 'mirror eager tp1' in names, str(names))
        check(len(r['bitwise']) == 3 and all(b['differ'] == 0 < b['values'] for b in r['bitwise']), str(r['bitwise']))
        for c in r['columns']:
            check(c['differs'] == c['unjudged'] == c['unstable'] == c['poisoned'] == 0 and c['equal'] > 0, str(c))
        native = column(r, 'native-packed eager tp1')
        check(native['flip'] > 0 and native['first']['op'] and native['origin'] is None, str(native))


def a_fault_of_the_recorded_run_is_placed(p):
    p.ok('inject', model(p), '--script', 's.safetensors', '--fault', 'row-swap@s1.attn_out:step=draft,round=3',
         '-o', 'f.tape', '--threads', 1)
    r = parity(p, 'f.tape', '--arms', 'native-packed,mirror64', exits=(1,))
    tape = column(r, 'tape')
    check(r['verdict'] == 'FAIL' and tape['origin']['op'] == 's1.attn_out' and tape['origin']['round'] == 3, str(tape))
    pair = [b for b in r['bitwise'] if b['a'] == 'tape'][0]
    check(pair['differ'] > 0 and pair['first']['round'] == 3 and pair['first']['value'] == 's1.attn_out', str(pair))
    value = [v for v in r['names'] if v['value'] == 's1.attn_out'][0]
    check(value['marks'][0] == 'X' and 'X' not in value['marks'][1:], str(value))
    check('only tape differs' in value['pattern'] or 'results' in value['pattern'], str(value))
    check(tape['first'] == {'round': 3, 'slot': -1, 'value': 's1.attn_out', 'op': 's1.attn_out'}, str(tape['first']))
    text = p.ok('parity', 'f.tape', 'm', '--arms', 'native-packed,mirror64', exits=(1,)).stdout
    lines = text.splitlines()
    rows = lines[next(i for i, x in enumerate(lines) if 'values differ  (=' in x) + 1:]
    check(rows[0].startswith('s1.attn_out ') and 'round 3: ' in rows[0], text)
    text = p.ok('parity', 'f.tape', 'm', '--arms', 'native-packed', exits=(1,)).stdout
    for part in ('FAIL', 'origin     tape: round 3 op s1.attn_out', 'values DIFFER, first round 3 s1.attn_out',
                 'only tape differs'):
        check(part in text, f'"{part}" is not in:\n{text}')


def shards_of_the_rounds_add_up(p):
    record(p, 't.tape', '--level', 'deep')
    whole = parity(p, 't.tape', '--arms', 'native-packed,mirror64', '--repeat', 1)
    parts = [parity(p, 't.tape', '--arms', 'native-packed,mirror64', '--repeat', 1, '--shard', f'{i}/3') for i in (1, 2, 3)]
    for key in ('rounds', 'values', 'values_differ', 'judged'):
        check(sum(r[key] for r in parts) == whole[key], f'{key}: {[r[key] for r in parts]} of {whole[key]}')
    for k, c in enumerate(whole['columns']):
        for key in ('equal', 'flip', 'differs', 'absent'):
            check(sum(r['columns'][k][key] for r in parts) == c[key], f'{c["name"]} {key}')
    one = parity(p, 't.tape', '--arms', 'native-packed', '--rounds', '2,4')
    check(one['rounds'] == 2 and one['verdict'] == 'PASS', str(one))


def replay_finds_no_poison_and_the_same_bits(p):
    record(p, 't.tape', '--level', 'v1', '--tp', 2)
    for mode in ('eager', 'graph'):
        r = json.loads(p.ok('replay', 't.tape', 'm', '-o', 'r.tape', '--mode', mode, '--repeat', 3, '--poison',
                            '--threads', 1, '--json').stdout)
        check(r['verdict'] == 'SAME' and r['stable'] and r['repeat'] == 3 and r['poisoned'] == 0, str(r))
    text = p.ok('replay', 't.tape', 'm', '-o', 'r.tape', '--poison', '--threads', 1).stdout
    check('poison: no value changes' in text, text)


def the_first_round_that_differs_is_found(p):
    model(p)
    p.ok('script', 'long.safetensors', '--model', 'm', '--rounds', 200, '--slots', 2, '--seed', 9)
    p.ok('inject', 'm', '--script', 'long.safetensors', '--fault', 'nan@head.collapse:round=137', '-o', 'f.tape',
         '--level', 'io', '--threads', 1)
    lines = p.ok('parity', 'f.tape', 'm', '--first-divergence', '--modes', 'eager', '--tps', 1, '--json', exits=(1,)).stdout
    r = json.loads(lines.splitlines()[0])
    check((r['a'], r['b']) == ('tape', 'native-packed eager tp1') and r['round'] == 137 and r['rounds'] == 200, str(r))
    check(7 <= r['checks'] <= 9 and r['shown'] and not r['state'], str(r))
    p.ok('record', 'm', '--script', 'long.safetensors', '-o', 'g.tape', '--level', 'io', '--threads', 1)
    text = p.ok('parity', 'g.tape', 'm', '--first-divergence', '--tps', 1).stdout
    for part in ('tape: drafts agree in 200 rounds (', 'windows and drafts agree in 200 rounds (',
                 'values were not compared'):
        check(part in text, f'"{part}" is not in:\n{text}')
    p.refused(2, ('--first-divergence', '--rounds'), 'parity', 'g.tape', 'm', '--first-divergence', '--rounds', '3')


def a_lost_value_is_no_pass(p):
    """Although the drafts, which --first-divergence compares, are all there."""
    p.ok('script', 's4.safetensors', '--model', model(p), '--rounds', 2, '--slots', 4)
    p.ok('record', 'm', '--script', 's4.safetensors', '-o', 'lost.tape', '--level', 'deep')
    at = [int(re.search(r'chunk at byte (\d+)', p.ok('show', f'lost.tape:1/-/{name}').stdout)[1])
          for name in ('draft.pos', 'head.logits')]
    check(at[0] < at[1], f'inputs and logits are in one chunk: {at}')
    data = bytearray(open('lost.tape', 'rb').read())
    data[at[1] + 5000] ^= 4
    open('lost.tape', 'wb').write(data)
    options = ('lost.tape', 'm', '--first-divergence', '--modes', 'eager', '--tps', 1)
    said = json.loads(p.ok('parity', *options, '--json', exits=(1,)).stdout)
    check((said['verdict'], said['round'], said['partial']) == ('PARTIAL', -1, True), said)
    check('PARTIAL' in p.ok('parity', *options, exits=(1,)).stdout, 'the text does not say so')
    for command in ('accept', 'classify'):  # and who needs the value says what to do
        r = p.run(command, 'lost.tape', 'm')
        check(r.returncode == 3 and 'sparktape recover lost.tape' in r.stderr, f'{command}: {r.stderr}')


def wrong_words_are_refused(p):
    record(p, 't.tape')
    for words, options in ((('--arms', 'bogus'), ('--arms', 'bogus')), (('--tps', '0'), ('--tps', '0')),
                           (('--bound',), ('--bound', 'loose')), (('--shard',), ('--shard', '3/2')),
                           (('--rounds', '77'), ('--rounds', '77')), (('mode', 'fast'), ('--modes', 'fast'))):
        p.refused(2, words[1:], 'parity', 't.tape', 'm', *options)
    p.refused(3, ['missing.tape'], 'parity', 'missing.tape', 'm')


main([every_column_is_equal_or_admissible, a_fault_of_the_recorded_run_is_placed, shards_of_the_rounds_add_up,
      replay_finds_no_poison_and_the_same_bits, the_first_round_that_differs_is_found, a_lost_value_is_no_pass,
      wrong_words_are_refused])
