"""What a tape says of itself must not command the terminal: hostile.py BINARY [TEST ...]"""
import json, os, struct, sys
import msgpack
from lib import check, main

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'formats'))
from read_tape import crc32c  # noqa: E402

PRELUDE, HEADER = 16, 32
# A title, a cleared screen, the same by the C1 code, a backspace and a delete.
BAD = '\x1b]0;owned\x07\x1b[2J\u009b31m\b\x7f\r'


def setup(p):
    if not os.path.exists('a.tape'):
        p.ok('synth', 'tiny', '--config', 'tiny')
        p.ok('script', 's.safetensors', '--model', 'tiny', '--rounds', 2, '--slots', 1)
        p.ok('record', 'tiny', '--script', 's.safetensors', '-o', 'a.tape', '--level', 'v1')


def spoiled(v, kept=()):
    """Every text with BAD behind it, and more of both kinds; what stands under a kept key stays."""
    if isinstance(v, dict):
        return {k: x if k in kept else spoiled(x, kept) for k, x in v.items()} | {'note' + BAD: BAD}
    if isinstance(v, list):
        return [spoiled(x, kept) for x in v] + [BAD]
    return v + BAD if isinstance(v, str) else v


# Without these no engine runs again what the tape holds: the first of its refusals would be all that is seen.
RUNS = ('format', 'level', 'config', 'program', 'checkpoint', 'arm', 'backend', 'mode', 'acc', 'combine')


def chunk(kind, sequence, meta, body):
    head = struct.pack('<4s c B H I I I I I', b'SPKC', kind, 0, 0, len(meta), len(body), sequence, crc32c(meta),
                       crc32c(body) if body else 0)
    return head + struct.pack('<I', crc32c(head)) + meta + body


def with_head(source, out, edit):
    """The tape with another head; without its end, whose offsets would be others."""
    with open(source, 'rb') as f:
        data = f.read()
    at, made = PRELUDE, data[:PRELUDE]
    while data[at:at + 4] == b'SPKC' and data[at + 4:at + 5] in b'HD':
        meta, body = struct.unpack_from('<II', data, at + 8)
        end = at + HEADER + meta + body
        if data[at + 4:at + 5] == b'H':
            head = msgpack.unpackb(data[at + HEADER:end])
            made += chunk(b'H', 0, msgpack.packb(edit(head)), b'')
        else:
            made += data[at:end]
        at = end
    with open(out, 'wb') as f:
        f.write(made)


def harmless(r, what):
    for text in (r.stdout, r.stderr):
        bad = [c for c in text if (ord(c) < 0x20 and c not in '\n\t') or 0x7f <= ord(c) < 0xa0]
        at = min((text.index(c) for c in bad), default=0)
        check(not bad, f'{what}: prints {sorted(set(bad))!r}: {text[max(0, at - 40):at + 40]!r}')


def a_head_cannot_command_the_terminal(p):
    setup(p)
    for kept in (RUNS,) if p.sanitized else ((), RUNS):
        look_at_all(p, kept)


def look_at_all(p, kept):
    with_head('a.tape', 'cut.tape', lambda head: spoiled(head, kept))
    p.ok('recover', 'cut.tape', '-o', 'hostile.tape', exits=(1,))
    with open('keys', 'w', encoding='utf-8') as f:
        f.write('7 PgDn')
    check('?]0;owned??[2J??31m???' in p.ok('info', 'hostile.tape', '--json').stdout, 'the head was not spoiled')
    ran = 0
    for args in (('info', 'hostile.tape'),
                 ('ls', 'hostile.tape'), ('doctor', 'hostile.tape'), ('doctor', 'cut.tape'),
                 ('show', 'hostile.tape:0/-/drafts'), ('diff', 'a.tape', 'hostile.tape'),
                 ('diff', 'hostile.tape', 'hostile.tape'), ('certify', 'hostile.tape', 'tiny'),
                 ('classify', 'hostile.tape', 'tiny'), ('parity', 'hostile.tape', 'tiny'),
                 ('accept', 'hostile.tape', 'tiny'), ('replay', 'hostile.tape', 'tiny'),
                 ('export', 'hostile.tape', '-o', 'x.safetensors', '--force'),
                 ('browse', 'hostile.tape', '--keys', 'keys'), ('browse', 'a.tape', 'hostile.tape', '--keys', 'keys')):
        r = p.run(*args)
        harmless(r, ' '.join(args))
        ran += r.returncode in (0, 1)
    check(ran >= (13 if kept else 6), f'{ran} of the commands got as far as an answer')


def a_result_cannot_command_the_terminal(p):
    setup(p)
    diff = [json.loads(x) for x in p.ok('diff', 'a.tape', 'a.tape', '--json').stdout.splitlines()]
    diff[0] = {k: v + BAD if isinstance(v, str) and k not in ('type', 'verdict') else v for k, v in diff[0].items()}
    with open('result.json', 'w', encoding='utf-8') as f:
        f.write('\n'.join(map(json.dumps, diff)))
    harmless(p.run('report', 'result.json', '--all'), 'report')
    harmless(p.run('report', 'result.json'), 'report')


if __name__ == '__main__':
    main([a_head_cannot_command_the_terminal, a_result_cannot_command_the_terminal])
