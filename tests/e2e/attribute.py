"""Attribution end to end: attribute.py BINARY [TEST ...]

A planted fault comes out as its op, from the tape alone; an arm that rounds elsewhere as the ops where it does; a run like
the reference as no difference. Ctrl-C and the budget leave a report that says so."""
import json, os, signal, subprocess
from lib import check, main

FUSED = ('--tp', 2, '--combine', 'fused')


def model(p):
    if os.path.exists('clean.tape'):
        return
    p.ok('synth', 'tiny', '--config', 'tiny', '--seed', 3)
    p.ok('script', 's.safetensors', '--model', 'tiny', '--rounds', 3, '--slots', 2)
    p.ok('record', 'tiny', '--script', 's.safetensors', '--level', 'deep', '-o', 'clean.tape')


def inject(p, fault, name, *options):
    model(p)
    if not os.path.exists(name):
        p.ok('inject', 'tiny', '--script', 's.safetensors', '--fault', fault, '-o', name, *options)
    return name


def attribute(p, tape, *options, exits=(1,)):
    return json.loads(p.ok('attribute', tape, 'tiny', '--json', *options, exits=exits).stdout)


def a_clean_tape_has_no_difference(p):
    model(p)
    for metric in ('drafts', 'kl', 'excess:s1.attn_out'):
        said = attribute(p, 'clean.tape', '--metric', metric, exits=(0,))
        check(said['verdict'] == 'SAME' and said['away'] is None and said['tape_tokens_other'] == 0, said)
    check('no difference' in p.ok('attribute', 'clean.tape', 'tiny').stdout, 'the text does not say so')


def a_fault_comes_out_as_its_op(p):
    for i, (fault, op) in enumerate((('row-swap@s0.attn_out:round=1', 's0.attn_out'), ('rope-late@s1.attn.q', 's1.attn.q'),
                                     ('ring-rotated@s1.window:round=1', 's1.window'),
                                     ('gain-missing@main_x:round=1', 'main_x'))):
        said = attribute(p, inject(p, fault, f'fault{i}.tape'), '--metric', 'kl')
        check(said['verdict'] == 'ATTRIBUTED', f'{fault}: {said["verdict"]}')
        check(said['away']['ops'] == said['appear']['ops'] == [op] and said['away']['minimal'], f'{fault}: {said["away"]}')
        check(said['arm_figure'] > said['limit'] >= said['away']['figure'], f'{fault}: {said}')


def the_table_has_every_try(p):
    tape = inject(p, 'rope-late@s1.attn.q', 'fused.tape', *FUSED)
    text = p.ok('attribute', tape, 'tiny', '--metric', 'kl', exits=(1,)).stdout
    said = attribute(p, tape, '--metric', 'kl')
    rows = [x for x in text.splitlines() if x.split(' ')[0].isdigit()]
    check(len(rows) == len(said['tries']) > 10, f'{len(rows)} rows, {len(said["tries"])} tries')
    check(all(x.endswith('same') or x.endswith('differs') for x in rows), text)
    check('s1.attn.q' in said['away']['ops'] and 's0.ffn_out' in said['away']['ops'], said['away'])
    alone = attribute(p, tape, '--metric', 'kl', '--combine', 'fused')
    check(alone['away']['ops'] == ['s1.attn.q'], alone['away'])


def what_a_tape_lacks_is_no_pass(p):
    model(p)
    with open('clean.tape', 'rb') as f, open('cut.tape', 'wb') as to:
        to.write(f.read()[:os.path.getsize('clean.tape') * 2 // 3])
    said = attribute(p, 'cut.tape')
    check(said['verdict'] == 'PARTIAL' and said['damaged'] is True, said)
    check('sparktape recover' in p.ok('attribute', 'cut.tape', 'tiny', exits=(1,)).stdout, 'nothing says recover')
    p.ok('record', 'tiny', '--script', 's.safetensors', '--level', 'io', '-o', 'io.tape')
    check(attribute(p, 'io.tape')['verdict'] == 'INCOMPLETE', 'nothing compared is said to be the same')
    check('--level deep' in p.ok('attribute', 'io.tape', 'tiny', exits=(1,)).stdout, 'nothing says what is wanted')
    with open('clean.tape', 'rb') as f, open('flipped.tape', 'wb') as to:
        data = bytearray(f.read())
        data[len(data) // 8] ^= 4
        to.write(data)
    for command in ('certify', 'attribute', 'parity'):
        r = p.ok(command, 'flipped.tape', 'tiny', exits=(1, 3))
        check('sparktape recover' in r.stdout + r.stderr, f'{command}: {r.stdout[:300]}{r.stderr}')
        check(command != 'certify' or r.stdout.startswith('PARTIAL'), f'{command}: {r.stdout[:300]}')


def an_arm_is_run(p):
    model(p)
    said = attribute(p, 'clean.tape', '--arm', 'native-expanded', *FUSED, '--metric', 'excess:s2.attn_out')
    check(said['verdict'] == 'ATTRIBUTED' and all(x.endswith('.ffn_out') for x in said['away']['ops']), said['away'])
    same = attribute(p, 'clean.tape', '--arm', 'native-hybrid', '--metric', 'kl', exits=(0,))
    check(same['verdict'] == 'SAME' and same['arm'] == 'native-hybrid', same)


def one_control_is_one_run(p):
    tape = inject(p, 'rope-late@s1.attn.q', 'fused.tape', *FUSED)
    said = attribute(p, tape, '--metric', 'kl', '--only', 's1.attn.q=tape')
    check(said['verdict'] == 'DIFFERS' and len(said['tries']) == 1, said)
    said = attribute(p, tape, '--metric', 'kl', '--only', 's0.attn=native-expanded', '--only', 's2.attn=tape', exits=(0,))
    check(said['verdict'] == 'SAME' and said['tries'][0]['kind'] == 'only', said)
    said = attribute(p, tape, '--only', 's1.attn.wo_b=mirror', exits=(0,))  # a hidden op, as plan and inject name it
    check(said['tries'][0]['ops'] == 's1.attn_out', said)


def another_engines_tape_and_chosen_rounds_are_attributed(p):
    tape = inject(p, 'rope-late@s1.attn.q', 'fault1.tape')
    p.ok('export', tape, '-o', 'export.safetensors')
    p.ok('import', 'export.safetensors', '-o', 'imported.tape')
    said = attribute(p, 'imported.tape', '--metric', 'kl')
    check(said['away']['ops'] == ['s1.attn.q'], said)
    p.ok('record', 'tiny', '--script', 's.safetensors', '--level', 'deep', '--rounds', '1-', '-o', 'chosen.tape', *FUSED)
    said = attribute(p, 'chosen.tape', '--metric', 'kl', '--rounds', '2')
    check(said['rounds'] == [2] and all(x.endswith('.ffn_out') for x in said['away']['ops']), said)


def the_budget_and_ctrl_c_leave_a_report(p):
    tape = inject(p, 'rope-late@s1.attn.q', 'fused.tape', *FUSED)
    said = attribute(p, tape, '--metric', 'kl', '--tries', 5)
    check(said['verdict'] == 'PARTIAL' and len(said['tries']) == 5 and not said['away']['minimal'], said)
    run = subprocess.Popen([p.path, 'attribute', tape, 'tiny', '--metric', 'kl'], env=p.env, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [run.stdout.readline() for _ in range(4)]
    run.send_signal(signal.SIGINT)
    rest, _ = run.communicate(timeout=60)
    check(run.returncode == 1 and 'PARTIAL' in rest and 'so far' in rest, f'exit {run.returncode}: {lines}{rest}')


def what_cannot_be_attributed_is_refused(p):
    model(p)
    arguments = ('attribute', 'clean.tape', 'tiny')
    p.refused(2, 'speed', *arguments, '--metric', 'speed')
    p.refused(2, 's9.attn_out', *arguments, '--metric', 'excess:s9.attn_out')
    p.refused(2, 'nope', *arguments, '--only', 'nope=tape')
    p.refused(2, 's1.attn_out', *arguments, '--metric', 'excess:s1.attn.wo_b')
    p.refused(2, 'SET=', *arguments, '--only', '=tape')
    p.refused(2, 'both', *arguments, '--only', 's0=tape', '--only', 's1=cuda')
    p.refused(2, '--arm', *arguments, '--tp', 2)
    p.refused(2, '--only', *arguments, '--arm', 'native-hybrid', '--only', 's0=tape')
    p.refused(2, '--rounds', *arguments, '--rounds', '77')
    p.refused(2, '--against: found', *arguments, '--against', 'nobody')
    p.refused(2, '--tries', *arguments, '--tries', 1)


if __name__ == '__main__':
    main([a_clean_tape_has_no_difference, a_fault_comes_out_as_its_op, the_table_has_every_try,
          what_a_tape_lacks_is_no_pass, an_arm_is_run,
          one_control_is_one_run, another_engines_tape_and_chosen_rounds_are_attributed,
          the_budget_and_ctrl_c_leave_a_report, what_cannot_be_attributed_is_refused])
