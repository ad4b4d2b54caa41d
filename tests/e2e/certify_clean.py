"""certify raises no alarm over many clean rounds: certify_clean.py BINARY [ROUNDS [BOUND ...]]

ROUNDS: how many, however long it takes. Without it as many as fit into 10 seconds, 1,000 at most.
BOUND: by these rules (certify --bound); without it the default and sharp."""
import os, sys, time
import lib
from certify import certify, passes, record
from lib import check

RUNS = (('native-packed', 2, 'exact', 'graph'), ('native-expanded', 1, 'fused', 'eager'),
        ('native-packed', 1, 'fused', 'graph'), ('native-expanded', 2, 'exact', 'eager'))
ROUNDS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 0
BOUNDS, sys.argv[2:] = sys.argv[2:] or ('default', 'sharp'), ()


def clean_rounds_raise_no_alarm(p):
    """Both arms, one rank and two, planned and not, every run with traffic of its own; every tenth on the larger model."""
    end, done, seed, elements, flips = time.monotonic() + 10, 0, 0, 0, 0
    while done < ROUNDS if ROUNDS else done < 1000 and time.monotonic() < end:
        arm, tp, combine, mode = RUNS[seed % len(RUNS)]
        name, n = ('mid', 5) if seed % 10 == 9 else ('tiny', 25)
        record(p, 'many.tape', '--level', 'deep', '--arm', arm, '--tp', tp, '--combine', combine, '--mode', mode, rounds=n,
               slots=4, seed=100 + seed, name=name)
        for bound in BOUNDS:
            r = certify(p, 'many.tape', '--bound', bound, name=name)
            check(r['bound'] == bound, f'--bound {bound} judged by {r["bound"]}')
            passes(r, f'{name} {arm} tp {tp} {combine} {mode} seed {100 + seed}, {bound}')
        done, seed, elements, flips = done + n, seed + 1, elements + r['elements'], flips + r['flip']
        os.remove('many.tape')
    print(f'      {done} rounds, {elements} elements, {flips} flips, none illegal by {", ".join(BOUNDS)}')


if __name__ == '__main__':
    lib.main([clean_rounds_raise_no_alarm])
