"""What bench prints of repetitions and refuses of tuning, where there is no card: bench.py BINARY [TEST ...]"""
import json, os
from lib import check, main

QUICK = ('--samples', 3, '--settle', 0, '--quiet')


def made(p):
    if not os.path.exists('model'):
        p.ok('synth', 'model')


def objects(p, *args):
    made(p)
    found = [json.loads(line) for line in p.ok('bench', 'model', *QUICK, *args, '--json').stdout.splitlines()]
    check(found and all(o['schema'] == 1 for o in found), str(found)[:300])
    return found


def once_is_a_line_a_shape(p):
    found = objects(p, '--b', '1,2', '--n-out', '2,5', '--arm', 'native-packed,mirror')
    shapes = [(a, b, n) for a in ('native-packed', 'mirror') for b in (1, 2) for n in (2, 5)]
    check([(o['arm'], o['b'], o['n_out']) for o in found] == shapes, str(found)[:600])
    check(all('rep' not in o and 0 < o['p10_us'] <= o['p50_us'] <= o['p90_us'] for o in found), str(found)[:600])
    lines = p.ok('bench', 'model', *QUICK, '--b', '1,2').stdout.splitlines()
    check(len(lines) == 4 and lines[0].startswith('native-packed, tp 1, graph'), '\n'.join(lines))
    check(lines[1].split() == 'arm b n_out experts p10 p50 p90 wall p50'.split(), lines[1])


def repetitions_take_turns_and_add_up(p):
    arms = ['native-packed', 'mirror64', 'native-packed']
    found = objects(p, '--b', '1,2', '--n-out', 5, '--arm', ','.join(arms), '--reps', 3)
    steps = [o for o in found if 'rep' in o]
    wanted = [(rep, arm, b) for rep in (1, 2, 3) for arm in arms for b in (1, 2)]
    check([(o['rep'], o['arm'], o['b']) for o in steps] == wanted, str([(o['rep'], o['arm'], o['b']) for o in steps]))
    sums = [o for o in found if 'rep_p50_us' in o]
    check([(o['arm'], o['b']) for o in sums] == [(arm, b) for arm in arms for b in (1, 2)], str(sums)[:600])
    for i, o in enumerate(sums):
        each = [s['p50_us'] for s in steps[i::6]]
        check(o['rep_p50_us'] == each and o['reps'] == 3, f'{o} {each}')
        check([o['min_us'], o['median_us'], o['max_us']] == sorted(each), f'{o} {each}')
    against = [o for o in found if 'control' in o]
    check([(o['arm'], o['b']) for o in against] == [(arm, b) for arm in arms[1:] for b in (1, 2)], str(against))
    for i, o in enumerate(against):
        a, c = sums[2 + i], sums[i % 2]
        word = 'faster' if a['max_us'] < c['min_us'] else 'slower' if a['min_us'] > c['max_us'] else 'overlap'
        check(o['verdict'] == word and o['control'] == arms[0], f'{o} {a} {c}')
        check(abs(o['ratio'] - a['median_us'] / c['median_us']) < 1e-12, f'{o} {a} {c}')
        check((o['slowest_us'], o['control_fastest_us']) == (a['max_us'], c['min_us']), f'{o} {a} {c}')
    check(len(found) == len(steps) + len(sums) + len(against), str(found)[:600])


def the_table_says_the_same(p):
    made(p)
    text = p.ok('bench', 'model', *QUICK, '--b', 1, '--arm', 'native-packed,mirror', '--reps', 2).stdout
    for word in ('repetition 1 of 2: native-packed, tp 1', 'repetition 2 of 2: mirror, tp 1',
                 'p50 of each of 2 repetitions', 'against native-packed: the ratio of medians'):
        check(text.count(word) == 1, f'"{word}" in:\n{text}')
    check(text.splitlines()[-1].split()[0] == 'mirror', text)
    alone = p.ok('bench', 'model', *QUICK, '--b', 1, '--reps', 2).stdout
    check('repetitions' in alone and 'against' not in alone, alone)


def what_cannot_be_measured_is_refused(p):
    made(p)
    for words, *args in (('--reps: found 100, wanted at most 99', '--reps', 100), ("--reps: found '0'", '--reps', 0),
                         ("--arm: found 'nope'", '--arm', 'native-packed,nope'), ('--arm: found no arm', '--arm', ','),
                         ('--tune: only for --backend cuda', '--tune'),
                         ('--tune: only for --backend cuda', '--tune', '--backend', 'cpu'),
                         ('--tune-out: wanted --tune', '--tune-out', 'x.json')):
        p.refused(2, words, 'bench', 'model', *args)
    cuda = ('bench', 'model', '--tune', '--backend', 'cuda')
    for words, *args in (('found --arm native-packed, wanted one whose experts', '--arm', 'native-packed'),
                         ('found --ops too', '--ops'), ('found --rows too', '--rows', 8),
                         ('found --bootstrap too', '--bootstrap', 'localhost:9'),
                         ('found --mode eager, wanted graph', '--mode', 'eager'), ('--b: found 2 twice', '--b', '2,1,2')):
        p.refused(2, words, *cuda, *args)
    check(not os.path.exists('model/dispatch.json') and not os.path.exists('x.json'), 'a table was written')


if __name__ == '__main__':
    main([once_is_a_line_a_shape, repetitions_take_turns_and_add_up, the_table_says_the_same,
          what_cannot_be_measured_is_refused])
