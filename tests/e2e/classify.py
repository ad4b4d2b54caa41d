"""The classifier and the acceptance of dumps: classify.py BINARY [TEST ...]"""
import json, shutil
import numpy as np
from chosen import Worker, model
from lib import as_float, check, main, oracle, read
from oracle import bf16_bits

FFN = ('--only', 's*.ffn=native-packed', '--combine', 'fused')
FAST = ('--threads', 1)  # small ops: threads would only wait for each other


def record(p, tape, *options, name='tiny', level='v1', rounds='0-11'):
    p.ok('record', model(p, name), '--script', name + '.safetensors', '-o', tape, '--level', level, '--rounds', rounds,
         *options)
    return tape


def classify(p, tapes, *options, exits=(0,), name='tiny'):
    tapes = [tapes] if isinstance(tapes, str) else tapes
    return json.loads(p.ok('classify', *tapes, name, '--json', '--quiet', *FAST, *options, exits=exits).stdout)


def failing(r):
    return {k for k, g in r['gates'].items() if g['verdict'] != 'PASS'}


def a_correct_worker_passes(p):
    """A few dozen keys: one sum that rounds the other way, where the mirror's does not, may carry the KL past twice the
    band. Then the same arm as a control does it too."""
    packed, expanded = ('native-packed', '--tp', 2), ('native-expanded', '--tp', 2)
    for options, control in ((('--arm', 'mirror'), ()), (('--mode', 'graph', '--arm', *packed), ('--control', *packed)),
                             (('--arm', *expanded), ('--control', *expanded))):
        for name in ('tiny', 'mid') if '--mode' in options else ('tiny',):
            r = classify(p, record(p, 'own.tape', *options, name=name), *control, name=name, exits=(0, 1))
            verdicts = ('PASS', 'CONTROL-FAILS') if control else ('PASS',)
            check(r['verdict'] in verdicts, f'{name} {options}: {r["gates"]}')
            check(failing(r) <= {'kl_ratio'} and not r['flags'], f'{name} {options}: {r["gates"]}')
            check(r['certificate']['verdict'] == 'PASS' and r['certificate']['illegal'] == 0, str(r['certificate']))
            check(len(r['keys']) >= 20 and all(k['own'] == k['n_out'] for k in r['keys']), str(r['keys'][:2]))
            kl = r['gates']['kl_ratio']  # the control is the worker, but for the order of the Markov term's sum
            check(not control or abs(kl['figure'] - kl['control']) <= 1e-3 * kl['control'], f'{name}: {kl}')


def a_strict_gate_that_the_control_fails_too(p):
    """A worker that rounds less often than the reference does: correct by its own contract, and far from the mirror's band.

    The strict attention gate fails it. It fails the mirror with nothing but that component replaced just as well, and says
    so; the certificate, which knows the contract and needs no band, passes.
    """
    record(p, 'fused.tape', '--arm', 'native-packed', '--tp', 2, '--combine', 'fused', level='deep')
    alone = classify(p, 'fused.tape', exits=(1,))
    check(alone['verdict'] == 'FAIL' and 'attention_median_excess' in failing(alone), str(alone['gates']))
    beside = classify(p, 'fused.tape', *FFN, exits=(1,))
    attention = beside['gates']['attention_median_excess']
    check(beside['verdict'] == attention['verdict'] == 'CONTROL-FAILS', str(beside['gates']))
    check(attention['figure'] > 50 and attention['control'] > 50, str(attention))
    check(attention['limit'] == attention['default'] == 2, str(attention))
    for r in (alone, beside):
        check(r['certificate']['verdict'] == 'PASS' and r['certificate']['elements'] > 1e6, str(r['certificate']))
        check(r['certificate']['not_judged'] == 0, str(r['certificate']))
        check(not failing(r) & {'state_flags', 'own_logit_flags'} and not r['flags'], str(r['flags'][:3]))
    # a control that passes leaves the blame with the worker
    other = classify(p, 'fused.tape', '--control', 'native-expanded', exits=(1,))
    check(other['verdict'] == 'FAIL' and other['gates']['attention_median_excess']['control'] <= 2, str(other['gates']))
    text = p.ok('classify', 'fused.tape', 'tiny', *FFN, *FAST, exits=(1,)).stdout
    for part in ('verdict: CONTROL-FAILS', 'certificate: PASS', 'limits: the defaults',
                 'control: the mirror with s*.ffn=native-packed, combine fused'):
        check(part in text, f'"{part}" is not in:\n{text}')
    # limits of the user's are said
    with open('loose.json', 'w', encoding='utf-8') as f:
        json.dump({'schema': 1, 'attention_median_excess': 1e5, 'kl_ratio': 1e6, 'unexplained_tokens': 1000}, f)
    loose = classify(p, 'fused.tape', '--gates', 'loose.json')
    check(loose['verdict'] == 'PASS' and loose['gates_file'] == 'loose.json', str(loose['gates']))
    check(loose['gates']['attention_median_excess']['default'] == 2, str(loose['gates']))
    text = p.ok('classify', 'fused.tape', 'tiny', *FAST, '--gates', 'loose.json').stdout
    check('loose.json attention_median_excess: limit 100000 instead of 2' in text, text)


def changed(p, tape, edit):
    """A tape with the export of another one, changed by hand."""
    p.ok('export', tape, '-o', 'export.safetensors')
    values, meta = read('export.safetensors')
    edit(values)
    oracle.st_write('changed.safetensors', values, meta)
    p.ok('import', 'changed.safetensors', '-o', 'changed.tape', '--identity-from', tape)
    return 'changed.tape'


def what_was_changed_by_hand_is_found_where_it_is(p):
    record(p, 'mirror.tape', '--arm', 'mirror')

    def attention(v):
        for k in [k for k in v if k.endswith('.s0.attn_out')]:
            v[k] = ('BF16', bf16_bits(as_float(v[k]) * np.float32(1.01)))
        check(k, 'no attn_out')

    def window(v):
        name = sorted(k for k in v if '.window.' in k and k.endswith('.s1'))[0]
        dtype, a = v[name]
        a = a.copy()
        a[0, 0] ^= 1
        v[name] = (dtype, a)

    def token(v):
        dtype, a = v['round.3.drafts']
        a = a.copy()
        a[0, -1] = (a[0, -1] + 1) % 1000
        v['round.3.drafts'] = (dtype, a)

    # at level v1 no inputs of attn_out are on the tape that would tell which values are legal
    for edit, gates, illegal in ((lambda v: None, set(), False), (attention, {'attention_median_excess'}, False),
                                 (window, {'state_flags'}, True), (token, {'own_logit_flags', 'unexplained_tokens'}, True)):
        r = classify(p, changed(p, 'mirror.tape', edit), exits=(1,) if gates else (0,))
        check(failing(r) == gates, f'{edit.__name__}: {r["gates"]} {r["flags"][:3]}')
        check((r['certificate']['illegal'] > 0) == illegal, f'{edit.__name__}: {r["certificate"]}')


def sums_rounded_to_bf16_are_not_its_own_argmax(p):
    """Drafts chosen by bf16 logits, a bf16 Markov term and a bf16 sum; the dump's f32 logits tell that they were."""
    record(p, 'deep.tape', '--arm', 'mirror', level='deep', rounds='0-23')
    flagged = []

    def coarse(v):
        for k in sorted(v):
            if not k.endswith('.head.biased'):
                continue
            r = k.split('.')[1]
            biased, logits, drafts = as_float(v[k]), as_float(v[f'round.{r}.head.logits']), v[f'round.{r}.drafts'][1].copy()
            b, n_out, vocab = biased.shape
            base = logits.reshape(b, -1, vocab)[:, n_out - 1]  # the last position: no other comes after it
            bf = lambda x: oracle.bf(np.asarray(x, np.float32))  # noqa: E731
            choice = bf(bf(base) + bf(biased[:, -1] - base)).argmax(-1)
            flagged.extend((int(r), int(i)) for i in np.flatnonzero(choice != drafts[:, -1]))
            drafts[:, -1] = choice
            v[f'round.{r}.drafts'] = ('I32', drafts.astype(np.int32))

    r = classify(p, changed(p, 'deep.tape', coarse), exits=(0, 1))
    check(len(flagged) > 0, 'no draft differs: the case shows nothing')
    check(r['gates']['own_logit_flags']['figure'] == len(flagged), f'{flagged}: {r["flags"]}')


def dumps_of_a_worker_are_classified(p):
    with Worker(p, 'tiny', '--dump-rounds', 'every:3', '--tp', 2, '--mode', 'graph') as w:
        p.ok('drive', 'unix:./w.sock', '--script', 'tiny.safetensors', '--concurrency', 4)
    r = classify(p, w.tapes, '--control', 'native-packed', '--tp', 2, exits=(0, 1))
    check(r['verdict'] in ('PASS', 'CONTROL-FAILS') and failing(r) <= {'kl_ratio'}, str(r['gates']))
    check(len(r['keys']) >= 20 and not r['flags'], str(r['flags'][:3]))
    check(r['certificate']['verdict'] == 'PASS', str(r['certificate']))
    p.ok('accept', w.tapes[0], 'tiny', '--quiet', *FAST)


def parts_and_tapes_add_up(p):
    record(p, 'mirror.tape', '--arm', 'mirror')
    whole = classify(p, 'mirror.tape')
    keys = []
    for i in (1, 2, 3):
        part = classify(p, 'mirror.tape', '--shard', f'{i}/3')
        check(part['shard'] == {'i': i, 'n': 3}, str(part['shard']))
        keys += part['keys']
    by_key = lambda keys: sorted(keys, key=lambda k: (k['round'], k['slot']))  # noqa: E731
    check(by_key(keys) == by_key(whole['keys']), 'the keys of the parts are not those of the whole')
    twice = classify(p, ['mirror.tape', 'mirror.tape'])
    check(len(twice['keys']) == 2 * len(whole['keys']) and twice['verdict'] == 'PASS', str(twice['gates']))


def what_cannot_be_classified_is_refused(p):
    record(p, 'mirror.tape', '--arm', 'mirror')
    shutil.rmtree('other', ignore_errors=True)
    p.ok('synth', 'other', '--seed', 6, '--config', 'tiny')
    p.refused(4, 'checkpoint', 'classify', 'mirror.tape', 'other')
    p.refused(2, 'no op of that name', 'classify', 'mirror.tape', 'tiny', '--only', 's7.attn=mirror64')
    p.refused(2, 'wanted SET=ARM', 'classify', 'mirror.tape', 'tiny', '--only', 's0.attn')
    p.refused(2, 'one of the two', 'classify', 'mirror.tape', 'tiny', '--only', 's0.attn=mirror64', '--control', 'mirror64')
    p.refused(2, '--shard', 'classify', 'mirror.tape', 'tiny', '--shard', '4/3')
    with open('bad.json', 'w', encoding='utf-8') as f:
        f.write('{"attention": 60}')
    p.refused(3, "key 'attention'", 'classify', 'mirror.tape', 'tiny', '--gates', 'bad.json')
    record(p, 'io.tape', '--arm', 'mirror', level='io')
    r = classify(p, 'io.tape', exits=(1,))
    check(all('nothing compared' in r['gates'][g]['verdict'] for g in failing(r)) and len(failing(r)) == 5, str(r['gates']))
    record(p, 'red.tape', '--arm', 'mirror', '--redact', 'key')
    for command in ('classify', 'accept'):
        p.refused(3, 'redacted', command, 'red.tape', 'tiny')


def acceptance_is_reported(p):
    record(p, 'run.tape', '--arm', 'native-packed', '--tp', 2)
    r = json.loads(p.ok('accept', 'run.tape', 'tiny', '--json', '--quiet', *FAST, '--arms', 'native-packed,mirror64',
                        '--control', 'mirror64').stdout)
    runs = [('recorded', None), ('native-packed', 'A'), ('native-packed', 'B'), ('mirror64', 'A'), ('mirror64', 'B')]
    check([(x['arm'], x['windows']) for x in r['runs']] == runs, str(r['runs']))
    check(r['determined'] > 10 and r['control'] == 'mirror64', str(r))
    for x in r['runs'][1:3]:
        check(x['blocks_exact'] == x['blocks'] == r['blocks'] and x['versus_control']['n'] == r['determined'], str(x))
        check(x['accepted'] == r['runs'][0]['accepted'] and x['p_target'] is None, str(x))
    text = p.ok('accept', 'run.tape', 'tiny', '--quiet', *FAST).stdout
    check('the tape has no target.logits' in text and 'mirror ' in text, text)
    p.refused(2, 'wanted one of', 'accept', 'run.tape', 'tiny', '--arms', 'nothing')
    p.refused(2, 'wanted one of --arms', 'accept', 'run.tape', 'tiny', '--control', 'mirror64')


if __name__ == '__main__':
    main([a_correct_worker_passes, a_strict_gate_that_the_control_fails_too, what_was_changed_by_hand_is_found_where_it_is,
          sums_rounded_to_bf16_are_not_its_own_argmax, dumps_of_a_worker_are_classified, parts_and_tapes_add_up,
          what_cannot_be_classified_is_refused, acceptance_is_reported])
