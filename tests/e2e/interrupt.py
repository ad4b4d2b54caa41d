"""What an analysis did not look at, it says: after an interrupt, of a tape that is cut off, and of a part of --shard that
no round falls into; and what is worst comes first. interrupt.py BINARY [TEST ...]"""
import json, os, signal, subprocess, time
from lib import check, main

ROUNDS = 20
TAPES = {'certify': ('t.tape', 'm'), 'parity': ('t.tape', 'm', '--arms', 'native-packed,mirror'),
         'classify': ('t.tape', 'm'), 'accept': ('t.tape', 'm'), 'diff': ('t.tape', 't.tape', '--forced', '--model', 'm')}


def record(p):
    if not os.path.exists('t.tape'):
        p.ok('synth', 'm', '--config', 'tiny', '--seed', 5)
        p.ok('script', 's.safetensors', '--model', 'm', '--rounds', ROUNDS, '--slots', 4)
        p.ok('record', 'm', '--script', 's.safetensors', '-o', 't.tape', '--level', 'deep')


def stopped(p, number, *args):
    """The report of a run that gets a signal just before its rounds begin."""
    q = subprocess.Popen([p.path, *args], env=p.env, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    wait_until_caught(q.pid)
    time.sleep(0.05)
    q.send_signal(number)
    out, err = q.communicate(timeout=120)
    return q.returncode, out, err


def wait_until_caught(pid, wanted=True):
    """The first signal is waited for from just before the rounds on; a second one is not."""
    for _ in range(3000):
        with open(f'/proc/{pid}/status') as f:
            caught = next(int(x.split()[1], 16) for x in f if x.startswith('SigCgt'))
        if bool(caught >> (signal.SIGINT - 1) & 1) == wanted:
            return
        time.sleep(0.002)
    check(False, f'a signal is {"not " if wanted else ""}waited for')


def an_interrupt_leaves_a_partial_report(p):
    record(p)
    for i, (command, args) in enumerate(TAPES.items()):
        code, out, err = stopped(p, (signal.SIGINT, signal.SIGTERM)[i % 2], command, *args, '--json', '--threads', '1')
        check(code == 1, f'{command}: exit {code}: {out[:300]}{err[-300:]}')
        r = json.loads(out.splitlines()[0])
        check(r['verdict'] == 'PARTIAL' and r['partial'] is True and not r['damaged'], f'{command}: {out[:300]}')
        check(r['rounds'] < r['rounds_wanted'] == ROUNDS, f'{command}: {r["rounds"]} of {r["rounds_wanted"]}')
        code, out, err = stopped(p, signal.SIGINT, command, *args, '--threads', '1')
        check(code == 1 and 'PARTIAL' in out and f'of {ROUNDS} rounds' in out, f'{command}: exit {code}: {out[:400]}')


def a_second_signal_ends_it(p):
    record(p)
    q = subprocess.Popen([p.path, 'parity', *TAPES['parity'], '--threads', '1'], env=p.env, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    wait_until_caught(q.pid)
    # stopped again before it can act on the first one: it must not be done by itself when the second one comes
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT, signal.SIGSTOP):
        q.send_signal(number)
    wait_until_caught(q.pid, False)
    for number in (signal.SIGINT, signal.SIGCONT):
        q.send_signal(number)
    q.communicate(timeout=120)
    check(q.returncode == -signal.SIGINT, f'exit {q.returncode}')


def a_scorecard_counts_what_it_planted(p):
    record(p)
    code, out, err = stopped(p, signal.SIGINT, 'scorecard', 'm', '--json', '--arms', 'native-packed', '--threads', '1')
    r = json.loads(out)
    check(code == 1 and r['verdict'] in ('PARTIAL', 'FAIL') and r['partial'] is True,
          f'exit {code}: {out[:300]}{err[-300:]}')
    check(r['planted'] == len(r['plantings']) < r['planted_wanted'], f'{r["planted"]} of {r["planted_wanted"]}')


def a_tape_that_is_cut_off_is_no_pass(p):
    record(p)
    with open('t.tape', 'rb') as f, open('cut.tape', 'wb') as to:
        to.write(f.read()[:os.path.getsize('t.tape') // 8])
    for command, args in TAPES.items():
        args = ['cut.tape' if x == 't.tape' else x for x in args]
        r = p.ok(command, *args, '--json', exits=(1,))
        j = json.loads(r.stdout.splitlines()[0])
        check(j['verdict'] in ('PARTIAL', 'FAIL') and j['partial'] is True and j['damaged'] is True,
              f'{command}: {r.stdout[:300]}')
        check(command == 'diff' or 'unfinished' in r.stderr or 'damaged' in r.stderr, f'{command}: {r.stderr}')
        text = p.ok(command, *args, exits=(1,)).stdout
        check('damaged or unfinished' in text, f'{command}: {text[:300]}')
    j = json.loads(p.ok('replay', 'cut.tape', 'm', '-o', 'again.tape', '--json', exits=(1,)).stdout)
    check(j['verdict'] == 'PARTIAL' and j['damaged'] is True, f'replay: {j}')


def an_empty_part_is_no_fault(p):
    """A Slurm array with more parts than rounds; a tape without rounds is no success all the same."""
    record(p)
    p.ok('record', 'm', '--script', 's.safetensors', '-o', 'few.tape', '--level', 'deep', '--rounds', '3-4')
    p.ok('record', 'm', '--script', 's.safetensors', '-o', 'none.tape', '--rounds', '9000')
    for command in ('certify', 'parity', 'classify', 'accept'):
        r = json.loads(p.ok(command, 'few.tape', 'm', '--shard', '3/3', '--json').stdout)
        check(r['verdict'] == 'EMPTY' and r['rounds'] == r['rounds_wanted'] == 0 and r['partial'] is False,
              f'{command}: {r}')
        check(r['shard'] == {'i': 3, 'n': 3}, f'{command}: {r["shard"]}')
        text = p.ok(command, 'few.tape', 'm', '--shard', '3/3').stdout
        check('nothing in this shard' in text, f'{command}: {text[:300]}')
        for words in ((), ('--shard', '1/2')):
            r = p.run(command, 'none.tape', 'm', *words)
            check(r.returncode not in (0, 2) and 'EMPTY' not in r.stdout,
                  f'{command}: exit {r.returncode}: {r.stdout[:300]}')


def diff_puts_nan_before_noise(p):
    """Another arm differs everywhere by the order of its sums; a NaN comes first all the same, and is what to look at."""
    record(p)
    p.ok('record', 'm', '--script', 's.safetensors', '-o', 'other.tape', '--level', 'deep', '--arm', 'mirror64')
    p.ok('export', 'other.tape', '-o', 'other.safetensors')
    with open('other.safetensors', 'rb') as f:
        data = bytearray(f.read())
    n = int.from_bytes(data[:8], 'little')
    for name, element, nan in (('round.4.s2.ffn_out', 100, (0x7fc0).to_bytes(2, 'little')),
                               ('round.5.s1.ffn.mix_comb', 7, (0x7fc00000).to_bytes(4, 'little'))):
        at = 8 + n + json.loads(data[8:8 + n])[name]['data_offsets'][0] + len(nan) * element
        data[at:at + len(nan)] = nan
    with open('nan.safetensors', 'wb') as f:
        f.write(data)
    p.ok('import', 'nan.safetensors', '-o', 'nan.tape', '--identity-from', 'other.tape')
    text = p.ok('diff', 't.tape', 'nan.tape', exits=(1,)).stdout
    lines = text.splitlines()
    origins = next(i for i, x in enumerate(lines) if x.startswith('origins'))
    rows, look = lines[origins + 2:], next(x for x in lines if x.startswith('look closer'))
    check(sum('NaN against a number' in x for x in lines[:origins]) == 2, text[:1500])
    check('s1.ffn.mix_comb' in rows[0] and ' NaN ' in rows[0] and ' NaN ' not in rows[1], text[:1500])
    check('nan.tape:5/-/s1.ffn.mix_comb[' in look and '0x7fc00000' in p.ok('show', look.split("'")[1]).stdout, look)


main([an_interrupt_leaves_a_partial_report, a_second_signal_ends_it, a_scorecard_counts_what_it_planted,
      a_tape_that_is_cut_off_is_no_pass, an_empty_part_is_no_fault, diff_puts_nan_before_noise])
