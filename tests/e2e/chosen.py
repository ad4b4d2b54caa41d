"""Chosen rounds of a worker or a recording, replayed without the rounds between: chosen.py BINARY [TEST ...]"""
import json, os, shutil, signal, socket, struct, subprocess
import msgpack
import numpy as np
from lib import Failed, check, main


def model(p, name='tiny'):
    """tiny, mid, or short: tiny with a window that every request goes round."""
    if not os.path.isdir(name):
        config = name
        if name == 'short':
            with open(os.path.join(model(p), 'config.json'), encoding='utf-8') as f:
                short = dict(json.load(f), window_size=24)
            config = 'short.json'
            with open(config, 'w', encoding='utf-8') as f:
                json.dump(short, f)
        p.ok('synth', name, '--seed', 5, '--config', config)
        rounds = 24 if name == 'mid' else 40  # a step of mid takes twice as long
        p.ok('script', name + '.safetensors', '--model', name, '--rounds', rounds, '--slots', 4, '--seed', 8)
    return name


class Worker:
    """sparktape serve with dumps of chosen rounds into ./d, until the end of the block; then self.tapes are there."""

    def __init__(self, p, name, *options):
        self.p, self.tapes = p, []
        shutil.rmtree('d', ignore_errors=True)
        os.mkdir('d')
        self.process = subprocess.Popen([p.path, 'serve', model(p, name), '--listen', 'unix:./w.sock', '--dump-dir', 'd',
                                         *map(str, options)], env=p.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        if not self.process.stdout.readline():
            raise Failed(f'serve did not get ready: {self.process.stderr.read()[-400:]}')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        self.tapes = sorted(os.path.join('d', name) for name in os.listdir('d'))


def replay(p, tape, name, *options, exits=(0,)):
    return json.loads(p.ok('replay', tape, name, '-o', 'again.tape', '--json', *options, exits=exits).stdout)


def same(r, drafts=1):
    check(r['verdict'] == 'SAME' and r['values'] == r['values_equal'], str(r))
    check(r['drafts'] == r['drafts_equal'] >= drafts, str(r))
    check(not r['not_replayed'] and not r['contradictions'], str(r))


def dumps_replay_to_their_own_bits_and_by_the_reference(p):
    for name, tp, mode in (('tiny', 1, 'eager'), ('tiny', 2, 'graph'), ('mid', 2, 'eager'), ('short', 1, 'graph')):
        with Worker(p, name, '--dump-rounds', 'every:3', '--tp', tp, '--mode', mode) as w:
            p.ok('drive', 'unix:./w.sock', '--script', name + '.safetensors', '--concurrency', 4)
        check(len(w.tapes) == 1 and w.tapes[0].endswith('.tape'), str(w.tapes))
        tape = w.tapes[0]
        first = replay(p, tape, name)
        same(first, drafts=15)
        check(first['windows_restored'] > 10, str(first))
        same(replay(p, tape, name, '--mode', 'graph' if mode == 'eager' else 'eager', '--repeat', 2), drafts=15)
        p.ok('diff', tape, tape, '--forced', '--model', name)
        reference = replay(p, tape, name, '--arm', 'mirror', exits=(0, 1))
        check(reference['drafts'] == first['drafts'] and not reference['not_replayed'], str(reference))
        check(reference['drafts_equal'] >= 0.9 * reference['drafts'], str(reference))
        check(not reference['contradictions'], str(reference))
        os.rename('again.tape', 'mirror.tape')  # a replay is a tape of chosen rounds too
        same(replay(p, 'mirror.tape', name), drafts=15)


def tapes_of_one_run_replay_one_by_one(p):
    """Of a tape after the first one the history lies on another tape."""
    with Worker(p, 'tiny', '--dump-rounds', 'all', '--dump-size', 1) as w:
        for _ in range(3):
            p.ok('drive', 'unix:./w.sock', '--script', 'tiny.safetensors', '--concurrency', 2)
    check(len(w.tapes) > 2, str(w.tapes))
    for tape in w.tapes[:4]:
        same(replay(p, tape, 'tiny'))


def recorded_rounds_replay(p):
    for level, restores in (('deep', True), ('v1', True)):
        p.ok('record', model(p), '--script', 'tiny.safetensors', '--rounds', '7,20-25,31', '--level', level, '-o', 'k.tape')
        r = replay(p, 'k.tape', 'tiny')
        same(r, drafts=5)
        check((r['windows_restored'] > 0) == restores, str(r))
        p.ok('diff', 'k.tape', 'again.tape')
    # a whole tape: nothing to restore
    p.ok('record', 'tiny', '--script', 'tiny.safetensors', '-o', 'whole.tape')
    r = replay(p, 'whole.tape', 'tiny')
    same(r, drafts=20)
    check(r['windows_restored'] == 0, str(r))


def rounds_that_cannot_be_replayed_are_named(p):
    p.ok('record', model(p), '--script', 'tiny.safetensors', '--rounds', '0,20', '--level', 'io', '-o', 'io.tape')
    r = replay(p, 'io.tape', 'tiny', exits=(1,))
    check(r['verdict'] == 'INCOMPLETE' and r['values'] == r['values_equal'] > 0 and r['rounds'] == 2, str(r))
    check({x['round'] for x in r['not_replayed']} == {20}, str(r))
    text = p.ok('replay', 'io.tape', 'tiny', '-o', 'again.tape', exits=(1,)).stdout
    lost = r['not_replayed'][0]
    for part in (f"round 20 slot {lost['slot']}: its draft cannot be replayed: found no rows of positions "
                 f"{lost['from']} to {lost['to']}, wanted them or s0.window",
                 'not replayed: the drafts of 1 of 2 rounds', ': INCOMPLETE '):
        check(part in text, f'"{part}" is not in:\n{text}')


def requests_come_go_and_insert_as_they_like(p):
    """Several inserts before a draft, slots that go from request to request, rings that are not full or go round."""
    with Worker(p, 'tiny', '--dump-rounds', 'every:2', '--slots', 2) as w:
        s = socket.socket(socket.AF_UNIX)
        s.connect('w.sock')

        def call(op, **keys):
            body = msgpack.packb(dict(op=op, id=1, **keys))
            s.sendall(struct.pack('<I', len(body)) + body)
            data = b''
            while len(data) < 4 or len(data) < 4 + struct.unpack('<I', data[:4])[0]:
                part = s.recv(1 << 16)
                check(part, 'the worker closed the connection')
                data += part
            reply = msgpack.unpackb(data[4:])
            check(reply['ok'], str(reply))
            return reply

        h = call('hello', version=1, client='e2e', checkpoint='', arm='', positions=2000, slots=2)
        e, numbers = h['epoch'], np.random.default_rng(1)

        def insert(slot, pos, rows):
            x = numbers.standard_normal(rows * h['n_taps'] * h['dim']).astype('<f4').view('<u4') >> 16
            call('insert', epoch=e, slot=slot, pos=pos, rows=rows, taps=x.astype('<u2').tobytes())
            return pos + rows

        for first, prompt in ((0, 3), (0, 300), (900, 130), (0, 128)):
            slots = [call('open', epoch=e)['slot'] for _ in range(2)]
            at = [insert(slots[0], first, prompt), insert(slots[1], 0, 2)]
            for step in range(9):
                call('draft', epoch=e, n_out=3, slots=slots[::-1], anchors=[step, 7], pos=[at[1] - 1, at[0] - 1])
                for _ in range(1 + step % 3):
                    at[0] = insert(slots[0], at[0], 1 + step % 4)
                at[1] = insert(slots[1], at[1], 40)
            for slot in slots:
                call('release', epoch=e, slot=slot)
        s.close()
    r = replay(p, w.tapes[0], 'tiny')
    same(r, drafts=30)
    check(r['windows_restored'] > 20, str(r))


def a_bit_that_flipped_is_found(p):
    p.ok('record', model(p), '--script', 'tiny.safetensors', '--rounds', '20,22', '-o', 'k.tape')
    with open('k.tape', 'rb') as f:
        sound = f.read()
    damaged = 0
    for at in range(len(sound) // 3, len(sound) - 5000, len(sound) // 5):
        with open('bad.tape', 'wb') as f:
            f.write(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1:])
        r = p.run('replay', 'bad.tape', 'tiny', '-o', 'again.tape')
        damaged += r.returncode == 3 or (r.returncode == 1 and 'DIFFERENT' in r.stdout)
        check(r.returncode in (1, 3) and (r.stderr + r.stdout).strip(), f'byte {at}: exit {r.returncode}')
    check(damaged > 0, 'no flip was found')


if __name__ == '__main__':
    main([dumps_replay_to_their_own_bits_and_by_the_reference, tapes_of_one_run_replay_one_by_one, recorded_rounds_replay,
          rounds_that_cannot_be_replayed_are_named, requests_come_go_and_insert_as_they_like, a_bit_that_flipped_is_found])
