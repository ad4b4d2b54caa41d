"""What bench says of a card, and the table that its tuning writes: bench.py BINARY [MODEL]

MODEL: a checkpoint without a table; without it a tiny one is made."""
import json, os, shutil, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'e2e'))
from lib import Failed, Product, check  # noqa: E402

ARM = 'native-hybrid-kx2'
QUICK = ('--samples', 20, '--settle', 0.05, '--quiet', '--json', '--backend', 'cuda')


def objects(p, *args):
    found = [json.loads(line) for line in p.ok('bench', *args, *QUICK, timeout=300).stdout.splitlines()]
    check(found and all(o['schema'] == 1 for o in found), str(found)[:300])
    return found


def measured(p, model):
    found = objects(p, model, '--b', '1,4', '--rows', 8, '--ops', '--reps', 2, '--arm', f'native-packed,{ARM}')
    states = [(o['rep'], o['arm'], o['when']) for o in found if 'state' in o]
    check(states == [(r, a, w) for r in (1, 2) for a in ('native-packed', ARM) for w in ('before', 'after')], str(states))
    for o in found:
        if o.get('state'):
            check(o['state']['sm_mhz'] > 0 and o['state']['power_w'] > 0, str(o))
    ops = [o for o in found if 'op' in o and 'b' in o]
    read = [o for o in ops if 'floor_bytes' in o]
    check(0 < len(read) < len(ops), f'{len(read)} of {len(ops)} ops read weights')
    for o in read:
        check(o['floor_bytes'] > 0 and abs(o['floor_share'] - o['floor_us'] / o['p50_us']) < 1e-2 * o['floor_share'] + 1e-2,
              str(o))
    for arm in ('native-packed', ARM):
        for b in (1, 4):
            (step,) = [o for o in found if 'p90_us' in o and o.get('b') == b and o['arm'] == arm and o['rep'] == 2]
            total = sum(o['floor_bytes'] for o in read if o['arm'] == arm and o['b'] == b)
            check(total == step['floor_bytes'], f'{arm}, b {b}: ops read {total}, the step {step["floor_bytes"]}')
        (memory,) = [o for o in found if o.get('memory') == 'all' and o['arm'] == arm]
        check(0 < memory['measured_bytes'] < min(memory['card_opened_bytes'], memory['card_sampled_bytes']), str(memory))
    check(len([o for o in found if 'verdict' in o]) == 2, 'verdicts')


def tuned(p, model):
    path = os.path.join(model, 'dispatch.json')
    *rows, last = objects(p, model, '--tune', '--b', '1,2')
    check(last['path'] == path and all(o['arm'] == ARM for o in rows), str(last))
    with open(path, encoding='utf-8') as f:
        table = json.load(f)
    with open(os.path.join(model, 'config.json'), encoding='utf-8') as f:
        config = json.load(f)
    block, stages = config['dspark_block_size'], config['n_mtp_layers']
    wanted = [(s, b * block) for s in range(stages) for b in (1, 2)]
    check([(x['stage'], x['rows']) for x in table['experts']] == wanted, str(table))
    check(table['schema'] == 1 and table['arm'] == ARM and table['tp'] == 1 and ',' not in table['device'], str(table))
    for x in table['experts']:
        (row,) = [o for o in rows if (o['stage'], o['rows']) == (x['stage'], x['rows'])]
        check(x['variant'] == row['variant'] and x['us'] == {v: row[v]['median_us'] for v in x['us']}, f'{x} {row}')
    p.refused(2, 'dispatch.json exists, wanted another name, or --force', 'bench', model, '--tune', '--backend', 'cuda')
    objects(p, model, '--b', 1, '--arm', ARM)  # which follows the table


def main(words):
    p = Product(words[0])
    if not json.loads(p.ok('doctor', '--system', '--json').stdout)['cards']:
        print('no CUDA device')
        return 77
    model = words[1] if len(words) > 1 else 'bench_tiny'
    if len(words) == 1:
        shutil.rmtree(model, ignore_errors=True)
        p.ok('synth', model)
    try:
        measured(p, model)
        tuned(p, model)
    except Failed as why:
        print(f'FAIL  {why}')
        return 1
    print('ok')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
