"""What a worker's dumps keep: serve_dumps.py BINARY [TEST ...]

Conditions, the flight recorder and redaction, on tapes that other commands then read."""
import glob, json, os, shutil, signal
from lib import check, main
from serve import Client, Worker, model, played

ROUNDS = 6  # of played()


def dumped(p, *options, ask_before=None):
    """Two clients one after the other, the same each time: their drafts, the status, the one tape."""
    shutil.rmtree('d', ignore_errors=True)
    os.mkdir('d')
    with Worker(p, '--dump-dir', 'd', *options) as w:
        first = played(w.address)
        if ask_before:
            w.process.send_signal(ask_before)
        check(played(w.address) == first, 'the same rows draft something else')
        Client(w.address).hello()  # answered after the last draft was checked, which its own answer does not wait for
        status = json.loads(p.ok('status', w.address, '--json').stdout)
        check(w.end() == 0, 'SIGTERM: exit is not 0')
    tapes = glob.glob('d/*.tape')
    check(len(tapes) == 1, str(tapes))
    p.ok('doctor', tapes[0])
    return first, status['dump'], tapes[0]


def rounds_of(p, tape):
    """How many rounds the tape has, the first and the last."""
    for line in p.ok('ls', tape, '--json').stdout.splitlines():
        v = json.loads(line)
        if v['value'] == 'main_x':
            return v['records'], v['first_round'], v['last_round']
    return 0, None, None


def a_condition_chooses_among_the_rounds(p):
    _, dump, tape = dumped(p, '--dump-when', 'nan')
    check((dump['chosen'], dump['fired']) == ('all', 0) and dump['checked'] == 2 * ROUNDS, str(dump))
    check(rounds_of(p, tape)[0] == 0, 'a round without a NaN was kept')
    _, dump, tape = dumped(p, '--dump-when', 'range:-1e-30..1e-30@main_x', '--dump-rounds', '3,5-6')
    check(rounds_of(p, tape) == (3, 3, 6), str(rounds_of(p, tape)))


def what_is_asked_for_comes_with_the_rounds_before(p):
    _, dump, tape = dumped(p, '--dump-flight', 2, ask_before=signal.SIGUSR1)
    check(rounds_of(p, tape) == (3, ROUNDS - 2, ROUNDS), f'{rounds_of(p, tape)} {dump}')


def redaction_hides_ids_from_the_tape_only(p):
    if os.path.exists('key'):
        os.remove('key')
    plain, _, plain_tape = dumped(p, '--dump-rounds', 'all')
    shutil.copy(plain_tape, 'plain.tape')
    hidden, dump, tape = dumped(p, '--dump-rounds', 'all', '--dump-redact', 'key')
    check(hidden == plain, 'redaction changed an answer')
    check(os.stat('key').st_mode & 0o777 == 0o600 and len(dump['redact']) == 16, str(dump))
    show = lambda t: p.ok('show', f'{t}:1/-/draft.anchor').stdout.splitlines()[-1]
    check(show(tape) != show('plain.tape'), 'the anchor is on the tape')


def words_of_dumps_want_a_folder(p):
    for words in (('--dump-when', 'nan'), ('--dump-flight', 3), ('--dump-redact', 'k')):
        p.refused(2, (words[0], '--dump-dir'), 'serve', model(p), *words)
    p.refused(2, '--when', 'serve', model(p), '--dump-dir', '.', '--dump-when', 'sometimes')
    p.refused(2, '--dump-flight', 'serve', model(p), '--dump-dir', '.', '--dump-flight', 70000)


if __name__ == '__main__':
    main([a_condition_chooses_among_the_rounds, what_is_asked_for_comes_with_the_rounds_before,
          redaction_hides_ids_from_the_tape_only, words_of_dumps_want_a_folder])
