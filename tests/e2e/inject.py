"""Planted faults end to end: inject.py BINARY [TEST ...]

A run with a fault says so wherever its tape is shown, is judged FAIL with the op named, and a fault that has no occasion
leaves no tape. The scorecard of a sample finds every fault that must show, at its op."""
import json, os, shutil
from exl3 import deliver
from lib import check, main


def model(p):
    if not os.path.exists('tiny'):
        p.ok('synth', 'tiny', '--config', 'tiny', '--seed', 3)
        p.ok('script', 's.safetensors', '--model', 'tiny', '--rounds', 3, '--slots', 2)


def inject(p, fault, *options, out='x.tape', **kw):
    model(p)
    return p.ok('inject', 'tiny', '--script', 's.safetensors', '--fault', fault, '-o', out, *options, **kw)


def the_list_has_every_field(p):
    lines = [json.loads(x) for x in p.ok('inject', '--list', '--json').stdout.splitlines()]
    check(len(lines) >= 40, f'{len(lines)} kinds, wanted 40 or more')
    for x in lines:
        check(x['kind'] and x['summary'] and x['cause'] and x['ops'], f'something is missing: {x}')
    check(len({x['kind'] for x in lines}) == len(lines), 'a kind is listed twice')
    text = p.ok('inject', '--list').stdout
    check(all(x['kind'] in text for x in lines), 'a kind is not in the text')


def places_of_a_kind_can_be_planted(p):
    model(p)
    places = p.ok('inject', 'tiny', '--list', '--fault', 'causal-mask').stdout.split()
    check(places and all(x.startswith('causal-mask@') for x in places), places)
    for x in places:
        inject(p, x)
    alone = p.ok('inject', 'tiny', '--list', '--fault', 'reduce-skipped')
    check(not alone.stdout and '--tp 2' in alone.stderr, alone)


def the_tape_says_what_was_planted(p):
    r = inject(p, 'row-swap@s0.attn_out:round=1,slot=0', '--json')
    said = json.loads(r.stdout)
    check(said['changed'] > 0 and said['injected']['kind'] == 'row-swap' and said['injected']['round'] == 1, said)
    p.ok('record', 'tiny', '--script', 's.safetensors', '--level', 'deep', '-o', 'clean.tape')
    info = p.ok('info', 'x.tape', '--json').stdout
    check(' UTC)' in p.ok('info', 'x.tape').stdout, 'info says no date')
    with open('x.tape', 'rb') as f, open('growing.tape', 'wb') as g:
        g.write(f.read()[:-100])
    growing = p.ok('doctor', 'growing.tape', exits=(1,)).stdout
    check('unfinished, perhaps still being written' in growing and 'DAMAGED' not in growing, growing)
    check('"injected"' in info and 'row-swap' in info, f'info: {info[:400]}')
    check('"injected"' not in p.ok('info', 'clean.tape', '--json').stdout, 'a clean tape says injected')
    check('injected' in p.ok('diff', 'x.tape', 'clean.tape', exits=(1,)).stdout, 'diff does not say injected')


def a_rank_that_went_its_own_way_is_the_origin(p):
    inject(p, 'reduce-skipped@s1.attn.wo_b_sum', '--tp', 2)
    p.ok('record', 'tiny', '--script', 's.safetensors', '--level', 'deep', '--tp', 2, '-o', 'two.tape')
    text = p.ok('diff', 'two.tape', 'x.tape', exits=(1,)).stdout
    first = text.split('\norigins')[1].splitlines()[2]
    check(' s1.attn_out ' in first and "rank 1's copy differs in B" in first, text[:2000])
    lines = [json.loads(x) for x in p.ok('diff', 'two.tape', 'x.tape', '--json', exits=(1,)).stdout.splitlines()]
    check({x['value'] for x in lines if x.get('class') == 'origin'} == {'s1.attn_out'}, 'other origins')


def the_certificate_names_the_op(p):
    for fault, op in (('row-swap@s0.attn_out:round=1', 's0.attn_out'), ('rope-late@s1.attn.q:round=2', 's1.attn.q'),
                      ('scale-255@s0.ffn.slot:round=1', 's0.ffn.slot'), ('ring-rotated@s1.window:round=1', 's1.window'),
                      ('qdq-missing@main_x.qdq:round=1', 's0.main_kv')):
        inject(p, fault)
        r = json.loads(p.ok('certify', 'x.tape', 'tiny', '--json', exits=(1,)).stdout)
        first = r['origins'][0]
        check(r['verdict'] == 'FAIL' and first['op'] == op, f'{fault}: first origin {first["op"]}, wanted {op}')
        check(f'round={first["round"]}' in fault, f'{fault}: in round {first["round"]}')


def a_rerun_names_what_one_tape_cannot(p):
    def cause(*options):
        return json.loads(p.ok('certify', 'x.tape', 'tiny', '--json', *options, exits=(1,)).stdout)['origins'][0]['cause']

    for fault, wanted in (('unstable@s1.attn_out:round=1', 'unstable: '),
                          ('unwritten-held@s1.ffn.norm:round=1', 'unwritten: '),
                          ('norm-sum@s1.attn.norm:round=1', 'wrong function: ')):
        inject(p, fault)
        alone, again = cause(), cause('--rerun')
        check('certify --rerun' in alone, f'{fault}: the tape alone says {alone}')
        check(again.startswith(wanted), f'{fault}: run again {again}')
    p.ok('certify', 'clean.tape', 'tiny', '--rerun')


def modes_and_ranks_give_the_same_fault(p):
    inject(p, 'reduce-twice@s0.attn.wo_b_sum', '--tp', 2, out='two.tape')
    inject(p, 'sink-skipped@s1.attn.attend', out='eager.tape')
    inject(p, 'sink-skipped@s1.attn.attend', '--mode', 'graph', out='graph.tape')
    p.ok('export', 'eager.tape', '-o', 'eager.safetensors')
    p.ok('export', 'graph.tape', '-o', 'graph.safetensors')
    from lib import read
    a, b = read('eager.safetensors')[0], read('graph.safetensors')[0]
    check(a.keys() == b.keys() and all((a[k][1] == b[k][1]).all() for k in a), 'planned and eager differ')


def what_cannot_be_planted_is_refused(p):
    model(p)
    arguments = ('inject', 'tiny', '--script', 's.safetensors', '-o', 'no.tape', '--fault')
    for fault, word in (('nope@x0', 'nope'), ('row-swap@nope', 'nope'), ('qdq-missing@x0', 'does not apply'),
                        ('row-swap@s0.attn.wkv', 'step='), ('row-swap@x0:round=99', '99'), ('row-swap@x0:slot=77', '77'),
                        ('row-swap', 'KIND@OP')):
        p.refused(2, word, *arguments, fault)
    p.refused(3, 'no occasion', *arguments, 'qdq-twice@taps.qdq')
    check(not os.path.exists('no.tape') and not os.path.exists('no.tape.part'), 'a refusal left a tape')
    inject(p, 'qdq-twice@taps.qdq', '--keep', out='kept.tape')


def a_sample_scores_full_marks(p):
    model(p)
    r = json.loads(p.ok('scorecard', 'tiny', '--every', 100, '--seed', 5, '--arms', 'native-packed,native-packed/2/fused',
                        '--json', timeout=280).stdout)
    full = r['verdict'] == 'PASS' and r['missed'] == 0 and r['detected'] > 20
    check(full, {k: r[k] for k in r if k != 'plantings'})
    check(all(a['clean'] == 'PASS' for a in r['arms']), r['arms'])
    parts = ('detected', 'missed', 'admissible', 'absorbed', 'idle')
    check(r['planted'] == sum(r[k] for k in parts), 'counts do not add up')
    check(r['causes_right'] >= 0.9 * r['causes_named'] > 9, f'{r["causes_right"]} causes of {r["causes_named"]}')
    for table in r['matrix']['tables']:
        cells = [c for row in table['cells'] for c in row if c]
        check(len(table['cells']) == len(table['rows']) and len(table['cells'][0]) == len(table['columns']), table['of'])
        check(all(sum(c[k] for c in cells) == r[k] for k in (*parts, 'planted', 'causes_right')), f'{table["of"]}: sums')
    unshown = sum(x['n'] for x in r['matrix']['unshown'])
    check(unshown == r['admissible'] + r['absorbed'] + r['idle'], f'{unshown} unshown')


def the_control_is_scored_where_its_weights_are(p):
    model(p)
    if not os.path.exists('delivered'):
        shutil.copytree('tiny', 'delivered')
        deliver('delivered')
    r = json.loads(p.ok('scorecard', 'delivered', '--kinds', 'exl3-*', '--ops', 's0.attn.wq_b', '--json').stdout)
    check(r['verdict'] == 'PASS' and r['right'] == r['planted'] == 10, {k: r[k] for k in r if k != 'plantings'})
    check([a['arm'] for a in r['arms'] if 'k2' in a['arm']] == ['k2-tp2/2'], r['arms'])
    check(r['causes_right'] == r['causes_named'] == 9, f'{r["causes_right"]} causes of {r["causes_named"]}')
    p.refused(2, 'does not apply', 'inject', 'delivered', '--script', 's.safetensors', '--fault', 'exl3-bit@s0.attn.wq_b',
              '-o', 'no.tape')


if __name__ == '__main__':
    main([the_list_has_every_field, places_of_a_kind_can_be_planted, the_tape_says_what_was_planted,
          a_rank_that_went_its_own_way_is_the_origin,
          the_certificate_names_the_op, a_rerun_names_what_one_tape_cannot, modes_and_ranks_give_the_same_fault,
          what_cannot_be_planted_is_refused, the_control_is_scored_where_its_weights_are, a_sample_scores_full_marks])
