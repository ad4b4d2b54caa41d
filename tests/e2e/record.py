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
        check('WARNING' in p.ok('info', 'none.tape').stdout.splitlines()[0], 'info begins with no warning')


def a_proof_refuses_what_it_cannot_use(p):
    model(p)
    for option in (('-o', 'x.tape'), ('--rounds', '1'), ('--redact', 'x.key'), ('--depth', '2'), ('--memory', '9'),
                   ('--on-full', 'block'), ('--when', 'nan'), ('--flight', '2')):
        p.refused(2, [option[0], '--prove'], 'record', 'm', '--script', 's.safetensors', '--prove', *option)
    check(not os.path.exists('x.key') and not os.path.exists('x.tape'), 'a refusal left a file')
    proof = json.loads(p.ok('record', 'm', '--script', 's.safetensors', '--prove', '--json').stdout)
    check(proof['verdict'] == 'PASS' and proof['taps'] > 0 and proof['round_us']['tapped'] > 0, f'{proof}')


def a_full_disk_leaves_what_was_flushed(p):
    model(p)
    fresh('full.tape', 'full.tape.part', 'saved.tape')

    def small_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700000, 700000))

    r = subprocess.run([p.path, 'record', 'm', '--script', 's.safetensors', '-o', 'full.tape'], env=p.env, timeout=120,
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       preexec_fn=small_disk)
    check(r.returncode == 5, f'exit {r.returncode}, wanted 5: {r.stderr}')
    check('full.tape.part' in r.stderr and 'sparktape recover' in r.stderr, f'not said what is left: {r.stderr}')
    check(os.path.exists('full.tape.part') and not os.path.exists('full.tape'), 'nothing is left, or it has a name')
    p.ok('recover', 'full.tape.part', '-o', 'saved.tape', exits=(1,))
    rounds = json.loads(p.ok('info', 'saved.tape', '--json').stdout)['rounds']
    check(0 < rounds < 8, f'{rounds} rounds were saved')


def a_refusal_leaves_nothing(p):
    model(p)
    fresh('x.tape', 'x.tape.part')
    p.refused(2, '--tap', 'record', 'm', '--script', 's.safetensors', '-o', 'x.tape', '--tap', 'nosuch=tensor')
    check(not os.path.exists('x.tape') and not os.path.exists('x.tape.part'), 'a refusal left a tape')


main([a_run_that_kept_no_round_says_so_first, a_proof_refuses_what_it_cannot_use, a_full_disk_leaves_what_was_flushed,
      a_refusal_leaves_nothing])
