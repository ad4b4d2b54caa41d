"""record --when and --flight as a user runs them: what is kept, what the first line says, a signal to a running record."""
import json, os, signal, subprocess, time
from lib import check, main, read

ROUNDS = 40


def setup(p):
    if not os.path.exists('model'):
        p.ok('synth', 'model', '--config', 'tiny', '--quiet')
        p.ok('script', 'script.safetensors', '--model', 'model', '--rounds', ROUNDS, '--slots', 4, '--quiet')
        p.ok('record', 'model', '--script', 'script.safetensors', '-o', 'all.tape', '--quiet')


def record(p, out, *args):
    """The first line, and the summary."""
    text = p.ok('record', 'model', '--script', 'script.safetensors', '-o', out, '--quiet', *args).stdout
    return text.splitlines()[0], json.loads(p.ok('info', out, '--json').stdout)['summary']


def rounds(p, tape):
    p.ok('export', tape, '-o', 'rounds.safetensors')
    return sorted({int(name.split('.')[1]) for name in read('rounds.safetensors')[0]})


def a_condition_that_never_held_is_the_first_line(p):
    setup(p)
    first, s = record(p, 'nan.tape', '--when', 'nan', '--when', 'differs:all.tape')
    check(first == f'2 of 2 conditions never held: nan, ...; nothing triggered in {ROUNDS} rounds', first)
    check(s['rounds'] == 0 and s['when']['judged'] == ROUNDS and s['when']['fired'] == 0, s)
    check(all(c['looked'] > 0 for c in s['when']['conditions']), s)
    check(p.run('doctor', 'nan.tape').returncode == 0, 'doctor')
    told = p.ok('info', 'nan.tape').stdout
    check(f'WARNING: the condition nan never held in {ROUNDS} rounds' in told, told)
    first, s = record(p, 'blind.tape', '--when', 'differs:nan.tape')
    check('differs:nan.tape (nothing to judge)' in first, first)


def acceptance_is_that_of_the_positions(p):
    setup(p)
    want, last = [], {}
    script = read('script.safetensors')[0]
    for r in range(ROUNDS):
        low = False
        for s in range(4):
            pos = script.get(f'round.{r}.insert.{s}.pos')
            if pos is None or s not in last:
                continue
            p0, n = last.pop(s)
            low |= min(int(pos[1][-1]) - p0 - 1, n) < 0.25 * n
        slots = script[f'round.{r}.draft.slots'][1]
        for s, pos in zip(slots, script[f'round.{r}.draft.pos'][1]):
            last[int(s)] = int(pos), int(script[f'round.{r}.draft.n_out'][1][0])
        if low:
            want.append(r)
    first, s = record(p, 'accept.tape', '--when', 'acceptance:0.25')
    got = rounds(p, 'accept.tape')
    check(0 < len(want) < ROUNDS and got == want, f'{got}, wanted {want}')
    check(s['when']['fired'] == len(want), s)
    _, s = record(p, 'before.tape', '--when', 'acceptance:0.25', '--flight', 1)
    want = sorted({r for w in want for r in (w - 1, w) if r >= 0})
    check(rounds(p, 'before.tape') == want, f'{rounds(p, "before.tape")}, wanted {want}')


def what_another_arm_makes_different_is_found_and_replays(p):
    setup(p)
    first, s = record(p, 'f64.tape', '--acc', 'f64', '--when', 'differs:all.tape@head.*', '--rounds', '0-9')
    check(s['when']['judged'] == 10 and 0 < s['when']['fired'] <= 10, s)
    first, s = record(p, 'few.tape', '--when', 'acceptance:0.25', '--flight', 2)
    p.ok('replay', 'few.tape', 'model', '-o', 'again.tape')
    p.ok('diff', 'few.tape', 'again.tape')


def sigusr1_keeps_the_rounds_in_memory(p):
    setup(p)
    p.ok('script', 'long.safetensors', '--model', 'model', '--rounds', 200, '--slots', 4, '--quiet')
    for seconds in (0.3, 2, 8):  # a machine that is busy with other things has not run four rounds so soon
        run = subprocess.Popen([p.path, 'record', 'model', '--script', 'long.safetensors', '-o', 'usr1.tape', '--flight',
                                '3', '--quiet', '--force'], env=p.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
        while not os.path.exists('usr1.tape.part') and run.poll() is None:
            time.sleep(0.005)
        time.sleep(seconds)
        run.send_signal(signal.SIGUSR1)
        out, errors = run.communicate(timeout=600)
        check(run.returncode == 0, errors)
        got = rounds(p, 'usr1.tape')
        if len(got) == 4:
            break
    check(len(got) == 4 and got == list(range(got[0], got[0] + 4)), f'{got}: {out}')
    check('rounds were asked for' in out, out)
    told = p.ok('info', 'usr1.tape').stdout
    check(f'SIGUSR1 in round {got[3]}, with 3 before it' in told, told)


def bad_conditions_are_refused(p):
    setup(p)
    for item in ['nan:', 'range:1', 'range:2..1', 'acceptance:2', 'differs:', 'sometimes', 'nan@no.such']:
        p.refused(2, ['--when', item], 'record', 'model', '--script', 'script.safetensors', '-o', 'x.tape', '--when', item)
    p.refused((3, 5), 'none.tape', 'record', 'model', '--script', 'script.safetensors', '-o', 'x.tape', '--when',
              'differs:none.tape')
    p.refused(2, 'all.tape', 'record', 'model', '--script', 'script.safetensors', '-o', 'all.tape', '--when',
              'differs:all.tape')
    p.refused(2, ['--prove', '--when'], 'record', 'model', '--script', 'script.safetensors', '--prove', '--when', 'nan')
    p.refused(2, '--flight', 'record', 'model', '--script', 'script.safetensors', '-o', 'x.tape', '--flight', 60000)
    check(not os.path.exists('x.tape') and not os.path.exists('x.tape.part'), 'a refusal left a file')


main([a_condition_that_never_held_is_the_first_line, acceptance_is_that_of_the_positions,
      what_another_arm_makes_different_is_found_and_replays, sigusr1_keeps_the_rounds_in_memory,
      bad_conditions_are_refused])
