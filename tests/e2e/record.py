"""What `record` says of a run that did not go as asked, through the command line: record.py BINARY [TEST ...]"""
import json, os, resource, signal, subprocess
from lib import check, main


def model(p):
    if not os.path.exists('m'):
        p.ok('synth', 'm', '--config', 'tiny', '--seed', 5)
        p.ok('script', 's.safetensors', '--model', 'm', '--rounds', 8, '--slots', 3)


def fresh(*names):
    for name in names:
        if os.path.exists(name):
            os.remove(name)


def a_run_that_kept_no_round_says_so_first(p):
    model(p)
    fresh('none.tape')
    for options in ((), ('--level', 'io', '--tap', '*=off')):
        fresh('none.tape')
        text = p.ok('record', 'm', '--script', 's.safetensors', '-o', 'none.tape', '--rounds', '100-', *options).stdout
        check(text.startswith('nothing recorded: of 8 rounds none was wanted'), f'first line: {text[:200]}')
        said = [x for x in p.ok('info', 'none.tape').stdout.splitlines() if 'WARNING' in x]
        check(len(said) == 1 and 'no value' in said[0], f'of a tape without a round info warns: {said}')


def a_proof_refuses_what_it_cannot_use(p):
    model(p)
    for option in (('-o', 'x.tape'), ('--rounds', '1'), ('--redact', 'x.key'), ('--depth', '2'), ('--memory', '9'),
                   ('--on-full', 'block'), ('--when', 'nan'), ('--flight', '2')):
        p.refused(2, [option[0], '--prove'], 'record', 'm', '--script', 's.safetensors', '--prove', *option)
    check(not os.path.exists('x.key') and not os.path.exists('x.tape'), 'a refusal left a file')
    proof = json.loads(p.ok('record', 'm', '--script', 's.safetensors', '--prove', '--json').stdout)
    check(proof['verdict'] == 'PASS' and proof['taps'] > 0 and proof['round_us']['tapped'] > 0, f'{proof}')
    below = proof['extra_us'] <= proof['noise_us']   # then it is not a cost, and is not called one
    check(proof['below_noise'] == below == (proof['us_per_tap'] is None), f'{proof}')


def a_full_disk_leaves_what_was_flushed(p):
    model(p)
    fresh('full.tape', 'full.tape.part', 'saved.tape')

    def small_disk(bytes=700000):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, bytes))

    r = subprocess.run([p.path, 'record', 'm', '--script', 's.safetensors', '-o', 'full.tape'], env=p.env, timeout=120,
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       preexec_fn=small_disk)
    check(r.returncode == 5, f'exit {r.returncode}, wanted 5: {r.stderr}')
    check('full.tape.part' in r.stderr and 'sparktape recover' in r.stderr, f'not said what is left: {r.stderr}')
    check(os.path.exists('full.tape.part') and not os.path.exists('full.tape'), 'nothing is left, or it has a name')
    p.ok('recover', 'full.tape.part', '-o', 'saved.tape', exits=(1,))
    rounds = json.loads(p.ok('info', 'saved.tape', '--json').stdout)['rounds']
    check(0 < rounds < 8, f'{rounds} rounds were saved')
    p.ok('record', 'm', '--script', 's.safetensors', '-o', 'whole.tape')
    for bytes in range(os.path.getsize('whole.tape') - 100, 0, -os.path.getsize('whole.tape') // 3):
        fresh('full.tape', 'full.tape.part')
        r = subprocess.run([p.path, 'replay', 'whole.tape', 'm', '-o', 'full.tape'], env=p.env, timeout=120,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           preexec_fn=lambda: small_disk(bytes))
        left = [x for x in ('full.tape', 'full.tape.part') if os.path.exists(x)]
        check(r.returncode == 5 and all(x in r.stderr for x in left), f'{bytes} bytes: left {left}: {r.stderr}')


def a_reference_that_cannot_be_compared_is_told(p):
    model(p)
    with open('m.tape', 'wb') as f:
        p.ok('record', 'm', '--script', 's.safetensors', '-o', 'one.tape', '--level', 'deep')
        f.write(open('one.tape', 'rb').read()[:-2000])
    for option in (('--base', 'm.tape'), ('--when', 'differs:m.tape')):
        p.refused(3, [option[0], 'm.tape', 'sparktape recover'], 'record', 'm', '--script', 's.safetensors', '-o', 'x.tape',
                  *option)
    text = p.ok('record', 'm', '--script', 's.safetensors', '-o', 'two.tape', '--level', 'deep',
                '--tp', 2, '--when', 'differs:one.tape').stdout
    told = json.loads(p.ok('info', 'two.tape', '--json').stdout)['summary']['when']['conditions'][0]['passed_over']
    check(told > 0 and f'passed over {told} values' in text, f'{told}: {text}')
    check(f'passed over {told} values' in p.ok('info', 'two.tape').stdout, 'info does not tell')


def an_import_is_as_incomplete_as_its_origin(p):
    model(p)
    p.ok('record', 'm', '--script', 's.safetensors', '-o', 'some.tape', '--rounds', '2-4')
    p.ok('export', 'some.tape', '-o', 'some.safetensors')
    p.ok('import', 'some.safetensors', '-o', 'back.tape', '--identity-from', 'some.tape')
    head = json.loads(p.ok('info', 'back.tape', '--json').stdout)['head']
    check(head.get('rounds') == '2-4', 'it does not say its rounds')
    p.ok('replay', 'back.tape', 'm', '-o', 'again.tape')


def a_refusal_leaves_nothing(p):
    model(p)
    fresh('x.tape', 'x.tape.part')
    p.refused(2, '--tap', 'record', 'm', '--script', 's.safetensors', '-o', 'x.tape', '--tap', 'nosuch=tensor')
    check(not os.path.exists('x.tape') and not os.path.exists('x.tape.part'), 'a refusal left a tape')


main([a_run_that_kept_no_round_says_so_first, a_proof_refuses_what_it_cannot_use, a_full_disk_leaves_what_was_flushed,
      a_reference_that_cannot_be_compared_is_told, an_import_is_as_incomplete_as_its_origin, a_refusal_leaves_nothing])
