"""What commands that look at things print, as text and as JSON: outputs.py BINARY [TEST ...]"""
import json, os, re
import lib
from lib import check, main


def made(p):
    if not os.path.exists('t.tape'):
        p.ok('synth', 'model')
        p.ok('script', 's.safetensors', '--model', 'model', '--rounds', 2, '--slots', 2)
        p.ok('record', 'model', '--script', 's.safetensors', '-o', 't.tape', '--tap', 's1.*=stats', '--tap', 's2.*=hash')


def objects(p, *args, exits=(0,)):
    """One object a line, all of a schema."""
    found = [json.loads(line) for line in p.ok(*args, '--json', exits=exits).stdout.splitlines()]
    check(found and all(o['schema'] == 1 for o in found), str(found)[:300])
    return found


def records_are_listed_one_by_one(p):
    made(p)
    records, values = objects(p, 'ls', 't.tape', '--records'), objects(p, 'ls', 't.tape')
    check(len(records) == sum(v['records'] for v in values), f'{len(records)} records')
    check({r['tier'] for r in records} == {'tensor', 'stats', 'hash'}, str({r['tier'] for r in records}))
    for r in records:
        check(bool(re.fullmatch('[0-9a-f]{16}', r.get('hash') or r['digest'])), str(r))
        check((r['min'] is None) == (r['tier'] == 'hash'), str(r))
    lines = p.ok('ls', 't.tape', '--records').stdout.splitlines()
    check(len(lines) == len(records) + 1, f'{len(lines)} lines')
    for r, line in zip(records, lines[1:]):
        slot = '-' if r['slot'] is None else r['slot']
        check(line.split()[0] == f"{r['round']}/{slot}/{r['value']}@r{r['rank']}", f'{r} {line}')
    some = objects(p, 'ls', 't.tape', 'ids,drafts', '--records')
    check({r['value'] for r in some} == {'ids', 'drafts'} and len(some) == 4, str(some))


def a_doctor_and_what_it_saves_agree(p):
    made(p)
    (sound,) = objects(p, 'doctor', 't.tape')
    check(sound['sound'] and sound['finished'] and sound['faults'] == 0 and sound['rounds'] == 2, str(sound))
    with open('t.tape', 'rb') as f:
        data = f.read()
    with open('cut.tape', 'wb') as f:
        f.write(data[:len(data) * 3 // 4])
    *faults, last = objects(p, 'doctor', 'cut.tape', exits=(1,))
    check(not last['sound'] and last['faults'] == len(faults) and all(f['fault'] for f in faults), str(last))
    *_, saved = objects(p, 'recover', 'cut.tape', '-o', 'saved.tape', exits=(1,))
    check(not saved['complete'] and saved['lost_bytes'] > 0 and saved['kept_records'] == last['records'], str(saved))
    (again,) = objects(p, 'doctor', 'saved.tape')
    check(again['sound'] and again['records'] == saved['kept_records'], str(again))


def a_plan_adds_up(p):
    made(p)
    (plan,) = objects(p, 'plan', 'model', '--tp', 2, '--head', 'k6', '--markov', 'cache', '--combine', 'fused')
    check([r['rank'] for r in plan['ranks']] == [0, 1], str(plan['ranks']))
    for r in plan['ranks']:
        check(sum(r['bytes'].values()) == r['total_bytes'] and r['bytes']['markov_cache'] > 0, str(r))
    check([x['step'] for x in plan['programs']] == ['insert', 'draft'], str([x['step'] for x in plan['programs']]))
    text = p.ok('plan', 'model').stdout
    for part in plan['ranks'][0]['bytes']:
        check(re.search(rf'^{part} ', text, re.M) or part == 'markov_cache', f'{part} is not in:\n{text[:900]}')
    for words in (('--head', 'k7'), ('--markov', 'none'), ('--combine', 'both'), ('--tp', 99), ('--positions', 1 << 40)):
        p.refused(2, words[0], 'plan', 'model', *words)


def weights_are_listed_cut_and_written(p):
    made(p)
    (head,) = objects(p, 'weights', 'model', 'head.weight')
    parts = [objects(p, 'weights', 'model', 'head.weight', '--rank', f'{r}/2')[0] for r in (0, 1)]
    check(sum(x['bytes'] for x in parts) == head['bytes'] and parts[0]['sha256'] != parts[1]['sha256'], str(parts))
    text = p.ok('weights', 'model', 'mtp.0.attn.*').stdout
    check(len(text.splitlines()) == 1 + len(objects(p, 'weights', 'model', 'mtp.0.attn.*')), text)
    p.ok('weights', 'model', 'mtp.0.attn.wq_a.*', '--decode', '-o', 'decoded.safetensors')
    (name, (dtype, values)), = lib.read('decoded.safetensors')[0].items()
    check(name == 'mtp.0.attn.wq_a.weight' and dtype == 'BF16' and values.any(), f'{name} {dtype}')
    for words in (('--rank', '2/2'), ('--rank', 'x')):
        p.refused(2, '--rank', 'weights', 'model', *words)
    p.refused((2, 3), 'nothing.like.it', 'weights', 'model', 'nothing.like.it')


def an_export_says_what_it_left_out(p):
    made(p)
    (said,) = objects(p, 'export', 't.tape', '-o', 'x.safetensors')
    check(said['no_payload'] > 0 and said['damaged'] == 0 and said['damage'] is None, str(said))
    check('statistics or hashes' in p.ok('export', 't.tape', '-o', 'x.safetensors').stderr, 'the note')
    p.refused(2, '-o', 'export', 't.tape', '-o', '')
    p.refused(2, '-o', 'export', 't.tape')


if __name__ == '__main__':
    main([records_are_listed_one_by_one, a_doctor_and_what_it_saves_agree, a_plan_adds_up,
          weights_are_listed_cut_and_written, an_export_says_what_it_left_out])
