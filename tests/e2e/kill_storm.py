"""SIGKILL at any moment of whoever writes a tape: kill_storm.py BINARY [TEST ...]

What stands under a final name is whole. What is left as .part gives, by recover, the first rounds of an undisturbed run,
bit for bit. Nothing that is left keeps the next one from starting. SPARKTAPE_KILLS of each kind, SPARKTAPE_SEED for the
moments."""
import json, os, random, select, shutil, signal, subprocess, time
from lib import check, main
from least import least

KILLS, SEED = int(os.environ.get('SPARKTAPE_KILLS', 4)), int(os.environ.get('SPARKTAPE_SEED', 1))
ROUNDS = 150
REDACTED = 5  # every so many runs make a key, too
SEEN = {}  # how the runs ended


def objects(p, *args, exits=(0,)):
    return [json.loads(x) for x in p.ok(*args, '--json', exits=exits).stdout.splitlines()]


def traffic(p):
    least(p)
    if not os.path.exists('k.safetensors'):
        p.ok('script', 'k.safetensors', '--model', 'least', '--rounds', ROUNDS, '--slots', 4, '--seed', 9)


def killed(process, seconds, what, exits=0):
    """Kills it seconds from now unless it has ended; whether it was killed."""
    try:
        process.wait(max(0, seconds))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    error = process.communicate(timeout=60)[1]
    check(process.returncode in (exits, -signal.SIGKILL), f'{what}: exit {process.returncode}: {error}')
    return process.returncode < 0


def moment(whole):
    """Of a run that takes so long, somewhere; every third time about its end, where names are given."""
    return random.uniform(0.8, 1.2) * whole if random.randrange(3) == 0 else random.uniform(0, 1.1) * whole


def spread(p, tape):
    """Its rounds: how many, the first and the last; and its events, which is what dropped rounds are."""
    values, n_events = objects(p, 'ls', tape), objects(p, 'info', tape)[0]['events']
    return (max(v['records'] for v in values if v['value'] == 'draft.n_out'), min(v['first_round'] for v in values),
            max(v['last_round'] for v in values), n_events) if values else (0, 0, -1, n_events)


def same_rounds(p, tape, ref, what):
    """Every record is that of ref, and no round is missing from the first to the last one unless the tape says so."""
    n, first, last, n_events = spread(p, tape)
    if n:
        verdict = objects(p, 'diff', ref, tape, '--rounds', f'{first}-{last}', exits=(0, 1))[0]
        records = objects(p, 'info', tape)[0]['records']
        check(verdict['equal'] == verdict['compared'] == records > n and verdict['differ'] == 0, f'{what}: {verdict}')
        if n == last - first + 1:
            check(verdict['verdict'] == 'SAME' and verdict['one_sided'] == 0, f'{what}: {verdict}')
        else:
            check(n_events, f'{what}: {n} rounds from {first} to {last}, and none was dropped')
            count('tapes with dropped rounds')
    return n, first, last


def saved(p, part, ref, what, ends=0):
    """What recover makes of a .part: rounds, the first and the last one's number. None: nothing whole was written yet.

    It is complete only when nothing but the name was missing; it has so many rounds then as ends says."""
    again = 'again.tape'
    r = p.run('recover', part, '-o', again, '--json')
    if r.returncode == 3:
        check(r.stderr.count('\n') == 1 and ('not a tape: empty' in r.stderr or 'nothing to save' in r.stderr), r.stderr)
        check(not os.path.exists(again + '.part'), f'{what}: a refused recover left a file')
        return 0, 0, -1
    said = json.loads(r.stdout.splitlines()[-1])
    check(r.returncode == (0 if said['complete'] else 1), f'{what}: recover: exit {r.returncode}: {r.stderr}')
    check(said['lost_rounds'] == said['lost_records'] == 0 and not said['head_lost'], f'{what}: {said}')
    check(not said['complete'] or said['kept_rounds'] == (ends or said['kept_rounds']), f'{what}: {said}')
    p.ok('doctor', again)
    return same_rounds(p, again, ref, what) if ref else (said['kept_rounds'], 0, -1)


def count(what, rounds=0):
    n, most = SEEN.get(what, (0, 0))
    SEEN[what] = (n + 1, max(most, rounds))


def told():
    print(f'seed {SEED}: ' + ', '.join(f'{n} {what}{f" (up to {most} rounds)" if most else ""}'
                                       for what, (n, most) in sorted(SEEN.items())), flush=True)
    SEEN.clear()


def undisturbed(words, **kw):
    began = time.monotonic()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, **kw)
    return time.monotonic() - began


def started(p, *words):
    return subprocess.Popen([p.path, *words], env=p.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def written(path):
    return (os.stat(path).st_ino, os.stat(path).st_mtime_ns) if os.path.exists(path) else None


def a_killed_record_leaves_its_first_rounds(p):
    traffic(p)
    random.seed(SEED)
    shutil.rmtree('r', ignore_errors=True)
    os.mkdir('r')
    words = ('record', 'least', '--script', 'k.safetensors', '--threads', '1')
    whole = undisturbed([p.path, *words, '--force', '-o', 'ref.tape'], env=p.env)
    for i in range(KILLS):
        key = ('--redact', 'r/key') if i % REDACTED == 0 else ()
        if os.path.exists('r/x.tape.part'):
            p.refused(2, ('r/x.tape.part', 'sparktape recover', '--force'), *words, '-o', 'r/x.tape', force=False)
        at, what, before = moment(whole), f'seed {SEED}, record {i}', written('r/x.tape.part')
        was = killed(started(p, *words, *key, '--force', '-o', 'r/x.tape'), at, what)
        left = {x for x in os.listdir('r') if not x.startswith('key')}
        begun = written('r/x.tape.part') != before
        check(left <= {'x.tape', 'x.tape.part'} and (was or left == {'x.tape'}), f'{what}: {left}')
        if os.path.exists('r/key'):  # whole or not there: a part of one would make all that comes after unreadable
            check((os.path.getsize('r/key'), os.stat('r/key').st_mode & 0o777) == (32, 0o600), f'{what}: half a key')
            os.remove('r/key')
        if 'x.tape' in left:
            p.ok('doctor', 'r/x.tape')
            n = spread(p, 'r/x.tape')[0] if key else same_rounds(p, 'r/x.tape', 'ref.tape', what)[0]
            check(n == ROUNDS, f'{what}: a tape of {n} rounds has its final name')
            os.remove('r/x.tape')
            count('records whole')
        elif left and begun:
            n, first, _ = saved(p, 'r/x.tape.part', None if key else 'ref.tape', what, ROUNDS)
            check(first == 0, f'{what}: the first round is {first}')
            count('records without their name' if n == ROUNDS else 'records cut off' if n else 'records without a round', n)
        else:
            count('records not begun')
    told()


def a_killed_recover_leaves_a_whole_tape_or_none(p):
    traffic(p)
    random.seed(SEED)
    p.ok('record', 'least', '--script', 'k.safetensors', '-o', 'ref.tape')
    with open('ref.tape', 'rb') as f, open('cut.tape', 'wb') as to:
        to.write(f.read()[:os.path.getsize('ref.tape') // 3])
    words = ('recover', 'cut.tape', '-o')  # what a killed one leaves needs no --force
    began = time.monotonic()
    p.ok(*words, 'want.tape', exits=(1,))
    whole = time.monotonic() - began
    with open('want.tape', 'rb') as f:
        want = f.read()
    shutil.rmtree('r', ignore_errors=True)
    os.mkdir('r')
    for i in range(KILLS):
        at, what = moment(whole), f'seed {SEED}, recover {i}'
        was = killed(started(p, *words, 'r/x.tape'), at, what, exits=1)
        check(was or os.path.exists('r/x.tape'), f'{what}: it ended without a tape')
        left = set(os.listdir('r'))
        check(left <= {'x.tape', 'x.tape.recovered', 'x.tape.recovered.part'}, f'{what}: {left}')
        if os.path.exists('r/x.tape'):
            with open('r/x.tape', 'rb') as f:
                check(f.read() == want, f'{what}: another tape')
            os.remove('r/x.tape')
            count('recoveries whole')
        else:
            count('recoveries cut off')
    told()


def ready(worker, what):
    if not worker.stdout.readline().startswith('ready '):
        worker.kill()
        check(False, f'{what} does not start: {worker.communicate()[1]}')


def of_worker(p, before, ref, what):
    """What a killed worker's dumps hold: rounds, from the first on, of however many tapes."""
    n, after, cut = 0, 0, 0
    for name in sorted(set(os.listdir('d')) - before):
        part, told_by = name.endswith('.part'), f'{what} {name}'
        check(part or name.endswith('.tape'), told_by)
        if not part:
            p.ok('doctor', f'd/{name}')
        k, first, last = (saved if part else same_rounds)(p, f'd/{name}', ref, told_by)
        check(not k or first >= after, f'{told_by}: begins with round {first}, wanted {after} or later')
        n, after, cut = n + k, last + 1 if k else after, cut + part
        count('dumps whole' if not part else 'dumps cut off' if k else 'dumps without a round', k)
    check(cut <= 1, f'{what}: {cut} tapes were being written')
    return n


def not_killed(p, words):
    """A rate at which this machine drops no dump, how long all rounds take then, and the tape."""
    for rate in ('400', '200', '100', '50', '25'):
        shutil.rmtree('whole', ignore_errors=True)
        os.mkdir('whole')
        began, worker = time.monotonic(), started(p, *words, '--dump-dir', 'whole')
        ready(worker, 'the one that is not killed')
        p.ok('drive', 'unix:./w.sock', '--script', 'k.safetensors', '--rate', rate)
        whole = time.monotonic() - began
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
        ref = 'whole/' + os.listdir('whole')[0]
        if spread(p, ref)[0] == ROUNDS:
            return rate, whole, ref
    check(False, f'{ref}: rounds were dropped although only {rate} came a second')


def a_killed_worker_leaves_its_first_rounds_and_starts_again(p):
    traffic(p)
    random.seed(SEED)
    shutil.rmtree('d', ignore_errors=True)
    os.mkdir('d')
    words = ('serve', 'least', '--listen', 'unix:./w.sock', '--threads', '1', '--dump-rounds', 'all')
    rate, whole, ref = not_killed(p, words)
    for i in range(KILLS):
        ends, what, before = time.monotonic() + moment(whole), f'seed {SEED}, worker {i}', set(os.listdir('d'))
        worker, drive = started(p, *words, '--dump-dir', 'd', '--dump-size', str((1, 1024)[i % 2])), None
        if select.select([worker.stdout], [], [], max(0, ends - time.monotonic()))[0]:
            ready(worker, what)
            drive = started(p, 'drive', 'unix:./w.sock', '--script', 'k.safetensors', '--rate', rate)
            time.sleep(max(0, ends - time.monotonic()))
        worker.kill()
        error = worker.communicate()[1]
        check((worker.returncode, error) == (-signal.SIGKILL, ''), f'{what}: exit {worker.returncode}: {error}')
        if drive:
            error = drive.communicate(timeout=60)[1]
            lost = drive.returncode == 5 and error.count('\n') == 1 and './w.sock' in error
            check(lost or drive.returncode == 0, f'{what}: its client: exit {drive.returncode}: {error}')
        n = of_worker(p, before, ref, what)
        count('workers before ready' if not drive else 'workers' if n < ROUNDS else 'workers after the last round', n)
        for name in before:  # what the one before left was there while this one ran
            os.remove(f'd/{name}')
    told()
    worker = started(p, *words, '--dump-dir', 'd')
    ready(worker, 'the last one')
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)
    check(worker.returncode == 0 and not os.path.exists('w.sock'), f'exit {worker.returncode}')


main([a_killed_record_leaves_its_first_rounds, a_killed_recover_leaves_a_whole_tape_or_none,
      a_killed_worker_leaves_its_first_rounds_and_starts_again])
