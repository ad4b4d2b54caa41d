"""What somebody types who has just begun is answered by what was found and what was wanted: first_day.py BINARY"""
import json, os, shutil
from lib import check, main


def made(p):
    if not os.path.exists('t.tape'):
        p.ok('synth', 'model')
        p.ok('script', 's.safetensors', '--model', 'model', '--rounds', 1, '--slots', 1)
        p.ok('record', 'model', '--script', 's.safetensors', '-o', 't.tape')


def one_thing_given_for_another_is_named(p):
    made(p)
    folder, tape, file = 'found a folder, wanted a tape', 'found a tape, wanted a', '(a safetensors file), wanted a tape'
    for words, *command in ((folder, 'certify', 'model', 't.tape'), (folder, 'info', 'model'), (folder, 'doctor', 'model'),
                            (tape + ' checkpoint folder', 'certify', 't.tape', 't.tape'),
                            (tape + ' checkpoint folder', 'record', 't.tape', '--script', 's.safetensors'),
                            (tape + ' checkpoint folder', 'doctor', '--system', 't.tape'),
                            (tape + ' safetensors file', 'record', 'model', '--script', 't.tape', '-o', 'x.tape'),
                            (tape + ' safetensors file', 'import', 't.tape', '-o', 'x.tape'),
                            (file, 'info', 's.safetensors'), ('(JSON text), wanted a tape', 'info', 'model/config.json'),
                            ('found a safetensors file, wanted a checkpoint folder', 'verify', 's.safetensors'),
                            ('nowhere: found nothing of that name, wanted a checkpoint folder', 'certify', 't.tape',
                             'nowhere')):
        p.refused(3, words, *command)


def a_wrong_word_is_told_under_its_own_option(p):
    made(p)
    for option, *command in (('--control', 'classify', 't.tape', 'model', '--control', 'nope'),
                             ('--only', 'classify', 't.tape', 'model', '--only', 's0.attn=nope'),
                             ('--arms', 'accept', 't.tape', 'model', '--arms', 'mirror,nope'),
                             ('--arms', 'parity', 't.tape', 'model', '--arms', 'nope'),
                             ('--modes', 'parity', 't.tape', 'model', '--modes', 'nope'),
                             ('--against', 'attribute', 't.tape', 'model', '--against', 'nope'),
                             ('--arms', 'scorecard', 'model', '--arms', 'nope/2'),
                             ('--arm', 'record', 'model', '--script', 's.safetensors', '--arm', 'nope')):
        p.refused(2, f": {option}: found 'nope', wanted one of", *command)


def help_is_asked_for_in_any_way(p):
    whole = p.ok('--help').stdout
    check(whole == p.ok('help').stdout == p.ok('-h').stdout, 'help, -h')
    for command in ('record', 'browse', 'arms'):
        text = p.ok(command, '--help').stdout
        check(text.startswith(f'usage: sparktape {command} '), text)
        check(text == p.ok('help', command).stdout == p.ok(command, '-h').stdout, command)
    p.refused(2, "found command 'nope'", 'help', 'nope')


def a_machine_is_looked_at_by_a_config_alone(p):
    made(p)
    os.makedirs('config', exist_ok=True)
    shutil.copy('model/config.json', 'config')
    bare, full = (json.loads(p.ok('doctor', '--system', m, '--json').stdout) for m in ('config', 'model'))
    check((bare['config_only'], full['config_only']) == (True, False), str(bare))
    check([a['tp1_bytes'] for a in bare['arms']] == [a['tp1_bytes'] for a in full['arms']], 'sizes')
    k2 = [next(a['cpu'] for a in r['arms'] if a['arm'] == 'k2-tp2') for r in (bare, full)]
    check(k2[0] is None and 'sparktape quantize' in k2[1], str(k2))
    check('config has no tensors' in p.ok('doctor', '--system', 'config').stdout, 'the note')
    p.refused(3, 'config.json', 'doctor', '--system', os.path.dirname(os.path.abspath('config')))


def an_import_says_what_has_no_counterpart(p):
    made(p)
    p.ok('export', 't.tape', 'ids,drafts', '-o', 'two.safetensors')
    with open('map.json', 'w', encoding='utf-8') as f:
        json.dump({'round.0.ids': 'round.0.idz', 'theirs': 'round.0.ids'}, f)
    text = p.ok('import', 'two.safetensors', '--map', 'map.json', '-o', 'x.tape').stdout
    for words in ('1 tensor is not in the map and keeps its name: round.0.drafts',
                  "1 entry of the map is no tensor's: theirs",
                  '1 value has a name that nothing here computes or judges: round.0.ids'):
        check(words in text, text)
    said = json.loads(p.ok('import', 'two.safetensors', '-o', 'x.tape', '--json').stdout)
    check((said['unmapped'], said['map_unused'], said['unknown']) == (0, 0, 0), str(said))


if __name__ == '__main__':
    main([one_thing_given_for_another_is_named, a_wrong_word_is_told_under_its_own_option, help_is_asked_for_in_any_way,
          a_machine_is_looked_at_by_a_config_alone, an_import_says_what_has_no_counterpart])
