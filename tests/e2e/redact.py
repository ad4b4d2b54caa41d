"""Redacted tapes, through the command line: redact.py BINARY [TEST ...]

Ids go through the permutation of the key file as docs and headers define it (made again here, in another language); a
replay with the key checks everything, one without says what it could not; nothing is called different that is not."""
import hashlib, json, os, stat, struct
import numpy as np
from lib import check, main, read

ROUNDS = 5
IDS = ('draft.anchor', 'ids', 'drafts')


def permutation(key, vocab):
    p, n = list(range(vocab)), 0
    for i in range(vocab - 1, 0, -1):
        if n % 4 == 0:
            block = hashlib.sha256(key + b'sparktape shuffle 1' + struct.pack('<IQ', vocab, n // 4)).digest()
        k = struct.unpack_from('<Q', block, 8 * (n % 4))[0] % (i + 1)
        p[i], p[k] = p[k], p[i]
        n += 1
    return np.array(p)


def model(p):
    if not os.path.exists('m'):
        p.ok('synth', 'm', '--config', 'tiny', '--seed', 5)
        p.ok('script', 's.safetensors', '--model', 'm', '--rounds', ROUNDS, '--slots', 3)
    return json.load(open('m/config.json'))['vocab_size']


def record(p, name, *options):
    for f in (name + '.tape', name + '.safetensors'):
        if os.path.exists(f):
            os.remove(f)
    p.ok('record', 'm', '--script', 's.safetensors', '-o', name + '.tape', *options)
    p.ok('export', name + '.tape', '-o', name + '.safetensors')
    return read(name + '.safetensors')[0]


def ids_are_those_of_the_key(p):
    vocab = model(p)
    plain, red = record(p, 'plain', '--level', 'deep'), record(p, 'red', '--level', 'deep', '--redact', 'a.key')
    check(stat.S_IMODE(os.stat('a.key').st_mode) == 0o600, 'the key can be read by others')
    to = permutation(open('a.key', 'rb').read(), vocab)
    n = {'ids': 0, 'columns': 0, 'withheld': 0, 'as it was': 0}
    for name, (dtype, a) in plain.items():
        value = name.split('.', 2)[2]
        if name not in red:
            n['withheld'] += 1
            check(value.startswith(('x0', 's0.attn.')), f'{name} is withheld')
            continue
        b = red[name][1]
        if value in IDS:
            n['ids'] += 1
            check((b == to[a]).all(), f'{name}: other ids than the key says')
        elif value in ('head.logits', 'head.biased'):
            n['columns'] += 1
            check((b[..., to] == a).all(), f'{name}: other columns than the key says')
        else:
            n['as it was'] += 1
            check(a.tobytes() == b.tobytes(), f'{name} was changed')
    check(all(n.values()), f'nothing to see of some kind: {n}')


def replay_says_what_it_checked(p):
    model(p)
    record(p, 'red', '--redact', 'a.key')
    for f in ('with.tape', 'without.tape'):
        if os.path.exists(f):
            os.remove(f)
    whole = json.loads(p.ok('replay', 'red.tape', 'm', '-o', 'with.tape', '--redact', 'a.key', '--json').stdout)
    check(whole['verdict'] == 'SAME' and whole['redacted'] == 0 and whole['drafts'] > 0, f'with the key: {whole}')
    part = json.loads(p.ok('replay', 'red.tape', 'm', '-o', 'without.tape', '--json', exits=(1,)).stdout)
    check(part['verdict'] == 'INCOMPLETE' and part['redacted'] > 0 and part['values'] > 0, f'without the key: {part}')
    check(part['values'] + part['redacted'] == whole['values'], f'{part} and {whole} do not add up')
    os.remove('without.tape')
    text = p.ok('replay', 'red.tape', 'm', '-o', 'without.tape', exits=(1,)).stdout
    said = [line for line in text.splitlines() if 'not checked' in line]
    check(len(said) == 1 and f'{part["redacted"]} values' in said[0], f'not one line about it: {text}')


def nothing_is_called_different_that_is_not(p):
    model(p)
    record(p, 'plain')
    record(p, 'red', '--redact', 'a.key')
    record(p, 'other', '--redact', 'b.key')
    record(p, 'again', '--redact', 'a.key')
    for a, b in (('plain', 'red'), ('red', 'plain'), ('red', 'other')):
        text = p.ok('diff', f'{a}.tape', f'{b}.tape', exits=(1,)).stdout
        said = [line for line in text.splitlines() if line.startswith('redacted')]
        check(text.startswith('INCOMPLETE') and len(said) == 1, f'{a}, {b}: {text[:600]}')
    text = p.ok('diff', 'red.tape', 'again.tape').stdout
    check(text.startswith('SAME') and 'redacted' not in text and 'blocks exact' in text, f'the same key: {text[:600]}')
    text = p.ok('diff', '--forced', 'plain.tape', 'red.tape', '--model', 'm', exits=(1,)).stdout
    check(text.startswith('INCOMPLETE') and 'were not run' in text, f'forced: {text[:600]}')
    p.ok('import', 'red.safetensors', '-o', 'back.tape')
    text = p.ok('diff', 'red.tape', 'back.tape', exits=(0, 1)).stdout
    check('redacted' not in text, f'an export forgets whose ids it has: {text[:600]}')


def a_difference_is_still_found(p):
    model(p)
    record(p, 'red', '--redact', 'a.key')
    record(p, 'mirror', '--redact', 'b.key', '--arm', 'mirror64')
    text = p.ok('diff', 'red.tape', 'mirror.tape', exits=(1,)).stdout
    check(text.startswith('DIFFERENT') and 'redacted' in text, text[:600])


def refusals(p):
    model(p)
    record(p, 'plain')
    record(p, 'red', '--redact', 'a.key')
    open('short.key', 'wb').write(b'x' * 31)
    os.chmod('short.key', 0o600)
    p.refused(3, ['short.key', '31'], 'record', 'm', '--script', 's.safetensors', '-o', 'x.tape', '--redact', 'short.key')
    p.refused(2, ['--redact', 'k.new', 'output'], 'record', 'm', '--script', 's.safetensors', '-o', 'k.new',
              '--redact', 'k.new')
    p.refused(2, ['--tap x0', '--redact'], 'record', 'm', '--script', 's.safetensors', '-o', 'x.tape', '--redact', 'a.key',
              '--tap', 'x0=tensor')
    check(not os.path.exists('x.tape') and not os.path.exists('x.tape.part'), 'a refusal left a tape')
    record(p, 'other', '--redact', 'b.key')
    p.refused(3, ['b.key', 'wanted'], 'replay', 'red.tape', 'm', '-o', 'x.tape', '--redact', 'b.key')
    p.refused(2, ['plain.tape', 'not redacted'], 'replay', 'plain.tape', 'm', '-o', 'x.tape', '--redact', 'a.key')
    p.refused(3, 'none.key', 'replay', 'red.tape', 'm', '-o', 'x.tape', '--redact', 'none.key')
    p.refused(3, 'found a folder', 'replay', 'red.tape', 'm', '-o', 'x.tape', '--redact', 'm')
    p.refused(2, '--redact', 'replay', 'red.tape', 'm', '-o', 'x.tape', '--redact', 'a.key', '--redact', 'b.key')
    check(not os.path.exists('none.key'), 'a replay made a key')


main([ids_are_those_of_the_key, replay_says_what_it_checked, nothing_is_called_different_that_is_not,
      a_difference_is_still_found, refusals])
