"""The browser as a user drives it: recorded keys in, a screen out."""
import json, os, subprocess, sys
import numpy as np
import browse_help, lib
from browse_help import COLUMNS, ROWS, screen
from lib import check


def tapes(p):
    """Two recordings of the same rounds, made once: by the engine and by the float64 reference."""
    a, _ = browse_help.tapes(p)
    if not os.path.exists('b.tape'):
        p.ok('record', 'model', '--script', 's.safetensors', '-o', 'b.tape', '--arm', 'mirror64', '--level', 'deep')
    return a, 'b.tape'


def recorded_keys_print_the_final_screen(p):
    a, b = tapes(p)
    text = screen(p, '# nothing pressed\n', a, b)
    lines = text.split('\n')
    fits = len(lines) == ROWS + 1 and all(len(x) <= COLUMNS and x == x.rstrip() for x in lines)
    check(fits, f'not 80x24, trimmed:\n{text}')
    check('Rounds' in lines[0] and '5 rounds compared' in lines[0], text)
    check('native-packed' in text and 'mirror64' in text, text)
    wide = screen(p, 'o Enter', a, b, '--size', '120x40').split('\n')
    check(len(wide) == 41 and max(map(len, wide)) > COLUMNS, 'no wider at 120x40')
    check(screen(p, 'o Enter\n h', a, b) == screen(p, 'o\nEnter h', a, b), 'the same keys show two screens')


def the_first_origin_is_the_one_that_diff_names(p):
    a, b = tapes(p)
    text = screen(p, 'o', a, b)
    name = next(x.split()[2] for x in text.split('\n') if x.startswith('> o '))
    report = p.ok('diff', a, b, exits=(1,)).stdout
    check(name in report, f'{name} is not in the report:\n{report}')
    check('origin' in screen(p, 'o Enter', a, b), 'the value screen does not say origin')


def a_reference_comes_back_to_its_element(p):
    a, b = tapes(p)
    ref = screen(p, 'o Enter y', a, b).rstrip('\n').split('\n')[-1]
    check(ref.startswith('b.tape:'), ref)
    check(ref[ref.index('['):] in screen(p, '', a, b, '--at', ref), f'{ref} is not where --at goes')
    check(p.ok('show', ref).stdout, f'show does not take {ref}')


def what_diff_says_of_another_rank_count_can_be_shown(p):
    """The line that diff ends with, and every difference of its report, whether cut, partial or replicated."""
    a, _ = tapes(p)
    p.ok('record', 'model', '--script', 's.safetensors', '-o', 'two.tape', '--arm', 'native-packed', '--acc', 'f64',
         '--tp', 2, '--level', 'deep')
    for x, y in ((a, 'two.tape'), ('two.tape', a)):
        line = next(t for t in p.ok('diff', x, y, exits=(1,)).stdout.split('\n') if t.startswith('look closer:'))
        check('0x' in p.ok('show', line.split("'")[1]).stdout, line)
    places, cut = set(), json.loads(p.ok('show', 'two.tape:0/-/s0.ffn.shared@r1', '--json').stdout)
    for line in map(json.loads, p.ok('diff', a, 'two.tape', '--json', exits=(1,)).stdout.splitlines()):
        if line['type'] != 'value' or 'metrics' not in line:
            continue
        worst, index = line['metrics']['worst'], []
        for n in reversed(line['b']['shape']):
            index.insert(0, worst % n)
            worst //= n
        slot = '-' if line['slot'] is None else line['slot']
        ref = f'two.tape:{line["round"]}/{slot}/{line["value"]}{index}'
        got = json.loads(p.ok('show', ref, '--json').stdout)
        check(got['element']['value'] == line['metrics']['b_worst'], f'{ref} is {got["element"]}, not {line["metrics"]}')
        check(got['shape'] == line['b']['shape'] and got['ranks'] == 2, f'{ref}: {got}')
        places.add(got['place'])
        if len(places) == 3:
            break
    check('partial' in places and len(places) >= 2, f'only {places} differ')
    check('joined' not in cut and cut['ref'].endswith('@r1'), f'one rank alone: {cut}')


def one_tape_alone_and_a_replay_are_browsed(p):
    a, _ = tapes(p)
    check('main_x' in screen(p, 'Enter', a), 'no program of one tape')
    text = screen(p, '', a, '--against', 'mirror', '--model', 'model', '--quiet')
    check('mirror' in text and '5 rounds compared' in text, text)


def every_screen_is_text(p):
    a, b = tapes(p)
    for key, title, word in (('1', 'Rounds', 'first origin'), ('2', 'Program', 'error'), ('3', 'Value', 'ULP'),
                             ('4', 'Routing', 'experts'), ('5', 'Tokens', 'Markov'), ('6', 'Matrix', 'against'),
                             ('7', 'Info', 'what differs'), (':info Enter', 'Output', 'records')):
        text = screen(p, key, a, b, 'bad.tape')
        check(title in text.split('\n')[0] and word in text, f'{key}:\n{text}')
        check('?' not in text.replace('? help', ''), f'{key}: a glyph that nobody knows:\n{text}')
    text = screen(p, '6', a, b, '--against', 'mirror', '--model', 'model', '--quiet', '--size', '120x40')
    check('C mirror' in text, text)


def a_planted_fault_is_found_in_three_keys(p):
    """first origin, open, worst: then it is exported, and the file holds what the tape holds."""
    a, _ = tapes(p)
    text = screen(p, 'o Enter w', a, 'bad.tape')
    check('s1.attn_out' in text.split('\n')[1] and 'origin' in text.split('\n')[1], text)
    text = screen(p, 'o Enter w x "!" Enter', a, 'bad.tape')
    check('wrote r2-s1.attn_out-B.npy of B, native-packed' in text, text)
    got = np.load('r2-s1.attn_out-B.npy')
    p.ok('export', 'bad.tape', '-o', 'bad.safetensors', 's1.attn_out')
    dtype, want = lib.read('bad.safetensors')[0]['round.2.s1.attn_out']
    check(dtype == 'BF16' and np.array_equal(got, np.asarray(want).view(np.uint16)), 'the .npy is not the value of B')


def exports_hold_what_is_on_the_screen(p):
    a, b = tapes(p)
    name = lambda file: f'x Clear "{file}!" Enter'  # noqa: E731
    text = screen(p, 'o Enter ' + name('v.safetensors'), a, 'bad.tape', b)
    check(f'wrote v.safetensors, {os.path.getsize("v.safetensors")} bytes' in text, text)
    text = screen(p, 'o Enter x Clear "v.safetensors" Enter', a, 'bad.tape')
    check('v.safetensors exists' in text, f'a file is replaced without a word:\n{text}')
    both, about = lib.read('v.safetensors')
    check(sorted(both) == ['A', 'B', 'C'] and 'bad.tape:2/-/s1.attn_out' in about['B'], f'{sorted(both)} {about}')
    n = int(np.sum(np.asarray(both['A'][1]).view(np.uint16) != np.asarray(both['B'][1]).view(np.uint16)))
    check(n == 510, f'{n} elements differ, wanted the 510 that were planted')
    screen(p, 'o Enter ' + name('v.csv'), a, 'bad.tape')
    rows = open('v.csv').read().splitlines()
    check(rows[0] == 'index,A,B,difference,ulp' and len(rows) == 1 + np.asarray(both['A'][1]).size, rows[:2])
    check(sum(not x.endswith(',0') for x in rows[1:]) == n, 'other elements differ in the CSV')
    screen(p, name('rounds.csv'), a, b)
    check(len(open('rounds.csv').read().splitlines()) == 11, 'not one line per slot and round')
    text = screen(p, 'o ' + name('here.txt'), a, b).split('\n')
    check(open('here.txt').read().split('\n')[:-2] == text[:-2], 'the .txt is not the screen')
    for key in ('2', '4', '5', '6'):
        check('wrote' in screen(p, f'{key} x "!" Enter', a, b), f'{key} is not exported')
    check('no table' in screen(p, '7 ' + name('info.csv'), a, b), 'info is no table')


def commands_run_on_the_selection(p):
    a, _ = tapes(p)
    text = screen(p, ':diff Enter', a, 'bad.tape')
    check('exit 1' in text and 'DIFFERENT' in text, text)
    text = screen(p, 'o Enter w :show Enter', a, 'bad.tape')
    check('exit 0' in text and '0x' in text, text)
    check('unknown' in screen(p, ':nonsense Enter', a) or 'exit 2' in screen(p, ':nonsense Enter', a), 'nonsense runs')
    check('--model' in screen(p, ':certify Enter', a) or '%m' in screen(p, ':certify Enter', a), 'no checkpoint, no word')
    check('Value' in screen(p, '":1/-/s0.attn_out[2,3]" Enter', a).split('\n')[0], 'a reference leads nowhere')
    check('attribute' in screen(p, 'o a', a, 'bad.tape'), 'no word of attribution')


def a_certificate_names_the_cause_inline(p):
    a, _ = tapes(p)
    for keys in ('o c', 'o Enter c'):
        text = screen(p, keys, a, 'bad.tape', '--model', 'model')
        check('row swap' in text and 'illegal' in text, text)
    text = screen(p, 'o c', a, 'bad.tape')
    check('--model' in text, text)


def one_tape_alone_is_judged_and_its_fault_found(p):
    tapes(p)
    to_round_2, alone = 'Down Down Down Down ', ('bad.tape', '--model', 'model')
    check('c)' in screen(p, 'o', *alone), 'no word of judging first')
    text = screen(p, 'c ' + to_round_2 + 'c', *alone).split('\n')
    check('judged' in text[2] and text[3].endswith('PASS') and text[7].endswith('FAIL'), '\n'.join(text))
    check('510 of' in text[-4] and 's1.attn_out' in text[-4], text[-4])
    check('s1.attn_out' in screen(p, to_round_2 + 'c o Enter', *alone).split('\n')[1], 'o goes elsewhere')
    check('> s1.attn_out' in screen(p, to_round_2 + 'c Enter Home n', *alone), 'n goes elsewhere')
    check('> ' + ' ' * 5 + '2 ' in screen(p, to_round_2 + 'c Home n', *alone), 'n on Rounds goes elsewhere')
    check("of A's confidence is" in screen(p, 'c Enter End', *alone), 'whose elements are legal?')


def of_one_tape_the_next_illegal_element_is_found(p):
    """It is judged illegal just where it differs from the tape without the fault."""
    a, _ = tapes(p)
    place, alone = '":2/-/s1.attn_out[0,0]" Enter ', ('bad.tape', '--model', 'model')
    for keys in ('e', 'e e', 'End E', 'End E E'):
        want = screen(p, place + keys, a, 'bad.tape').split('\n')[-4].split(']')[0]
        got = screen(p, place + 'c ' + keys, *alone).split('\n')[-4].split(']')[0]
        check(got == want and '[' in got and '[0, 0' not in got, f'{keys}: {got}, wanted {want}')
    check('c judges the round' in screen(p, place + 'e', *alone), 'e says nothing of judging')
    check('no later element is illegal' in screen(p, place + 'c End e', *alone), 'e goes nowhere and says nothing')


def commands_are_about_the_suspect(p):
    """B of a pair, the tape alone; the title says which."""
    a, _ = tapes(p)
    pair = (a, 'bad.tape', '--model', 'model')
    check('B: $ sparktape certify bad.tape' in screen(p, 'o :certify Enter', *pair), ':certify')
    text = screen(p, 'o a', *pair)
    check('B: $ sparktape attribute bad.tape' in text and 'ATTRIBUTED' in text, text)
    head = ''.join(x[1:71] for x in text.split('\n')[1:3])  # beside "exit 0"
    check('model --metric excess:s1.attn_out --rounds 2' in head, f'the command is cut: {head}')
    check('A: $ sparktape info a.tape' in screen(p, '":info %a" Enter', *pair), '%a')
    check('$ sparktape info bad.tape' in screen(p, ':info Enter', *pair[1:]), 'alone')


def ranks_are_compared_and_experts_counted(p):
    a, _ = tapes(p)
    text = screen(p, '6', 'two.tape', a)
    check('2 ranks' in text and 'copies' in text, text)
    check('experts 0-7 across' in screen(p, '4', a, '--size', '120x40'), 'not the 8 experts of the model')


def expressions_choose_lines(p):
    a, _ = tapes(p)
    text = screen(p, 'f "excess>4 && stage==1" Enter', a, 'bad.tape')
    check('2 of 10 lines' in text, text)
    text = screen(p, 'f "excess>4 && stage==0" Enter', a, 'bad.tape')
    check('no line passes' in text, text)
    text = screen(p, 'o f "ulp>1000 && value~attn" Enter', a, 'bad.tape')
    check('s1.attn_out' in text and 's0.' not in text, text)


def the_configuration_moves_keys(p):
    a, b = tapes(p)
    os.makedirs('settings/sparktape', exist_ok=True)
    with open('settings/sparktape/config', 'w') as f:
        f.write('# mine\nbind origin O F5\nset ascii on\n')
    try:
        check('Program' in screen(p, 'O', a, b), 'O does nothing')
        check('Program' not in screen(p, 'o', a, b), 'o still works')
        screen(p, 'O Enter', a, b).encode('ascii')
        check('O F5' in screen(p, '?', a, b) and 'O origin' in screen(p, '', a, b), 'the help has the old key')
        check('origin               O F5' in p.ok('browse', '--list-keys').stdout, 'the list has the old key')
        for line, word in (('bind nowhere x', 'nowhere'), ('bind origin q', 'back'), ('bind origin Dwon', 'Dwon'),
                           ('set mouse maybe', 'maybe'), ('hello', 'hello')):
            with open('wrong', 'w') as f:
                f.write('# a line\n' + line + '\n')
            p.refused(3, ['wrong', 'line', word], 'browse', a, '--keys', 'keys', '--config', 'wrong')
    finally:
        os.remove('settings/sparktape/config')


def the_manual_is_what_the_binary_says(p):
    folder = os.path.join(os.path.dirname(os.path.abspath(lib.__file__)), '..', '..', 'docs', 'man')
    os.makedirs('man', exist_ok=True)
    made = subprocess.run([sys.executable, os.path.join(folder, 'make.py'), p.path, 'man'], check=False)
    check(made.returncode == 0, 'the manual cannot be made')
    with open('man/sparktape-browse.1') as f, open(os.path.join(folder, 'sparktape-browse.1')) as g:
        manual = g.read()
        check(f.read() == manual, 'docs/man/sparktape-browse.1 is another: run docs/man/make.py')
    with open('example', 'w') as f:
        f.write(manual.split('sparktape/config:\n.nf\n')[1].split('\n.fi')[0].replace('\\-', '-'))
    listed = p.ok('browse', '--list-keys', '--config', 'example').stdout
    check('next-different       n F3' in listed, f'the example of the manual does nothing:\n{listed}')


def ascii_screens_are_ascii(p):
    a, b = tapes(p)
    screen(p, 'o Enter', a, b, '--ascii').encode('ascii')
    p.env['LC_ALL'] = 'C'
    try:
        screen(p, 'o Enter', a, b).encode('ascii')
    finally:
        p.env['LC_ALL'] = 'C.UTF-8'


def what_is_wrong_is_named(p):
    a, b = tapes(p)
    with open('bad', 'w') as f:
        f.write('Enter\nDwon\n')
    p.refused(3, ['bad', 'line 2', 'Dwon'], 'browse', a, '--keys', 'bad')
    p.refused(3, 'missing.keys', 'browse', a, '--keys', 'missing.keys')
    p.refused(2, 'terminal', 'browse', a)
    p.refused(2, '0x0', 'browse', a, '--keys', 'keys', '--size', '0x0')
    p.refused(2, '--model', 'browse', a, '--keys', 'keys', '--against', 'mirror')
    p.refused(2, '--follow', 'browse', a, '--keys', 'keys', '--against', 'mirror', '--model', 'model', '--follow')
    p.refused(2, 'no tape', 'browse', '--keys', 'keys')
    p.refused(3, 'no-settings', 'browse', a, '--keys', 'keys', '--config', 'no-settings')
    p.refused(2, 'at most 8', 'browse', *[a] * 9, '--keys', 'keys')
    p.refused(2, 'nonsense', 'browse', a, '--keys', 'keys', '--at', 'nonsense')
    p.refused(3, 'round 77', 'browse', a, '--keys', 'keys', '--at', '77')
    p.refused(3, 'keys', 'browse', 'keys', '--keys', 'keys')


lib.main([recorded_keys_print_the_final_screen, the_first_origin_is_the_one_that_diff_names,
          a_reference_comes_back_to_its_element, what_diff_says_of_another_rank_count_can_be_shown,
          one_tape_alone_and_a_replay_are_browsed, every_screen_is_text, a_planted_fault_is_found_in_three_keys,
          exports_hold_what_is_on_the_screen, commands_run_on_the_selection, a_certificate_names_the_cause_inline,
          one_tape_alone_is_judged_and_its_fault_found, of_one_tape_the_next_illegal_element_is_found,
          commands_are_about_the_suspect,
          ranks_are_compared_and_experts_counted,
          expressions_choose_lines, the_configuration_moves_keys, the_manual_is_what_the_binary_says,
          ascii_screens_are_ascii, what_is_wrong_is_named])
