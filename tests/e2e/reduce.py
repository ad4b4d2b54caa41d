"""The reducer end to end: reduce.py BINARY [TEST ...]

A bundle builds with a C compiler alone, and says of a clean run that it is the same, of a planted fault that it differs, at
the index that the certificate names."""
import glob, json, os, re, shutil, subprocess
import numpy as np
from exl3 import deliver
from lib import check, main

FLAGS = ['-std=c11', '-O1', '-ffp-contract=off']
WARN = ['-Wall', '-Wextra', '-Werror']


def model(p):
    if os.path.exists('clean.tape'):
        return
    p.ok('synth', 'tiny', '--config', 'tiny', '--seed', 3)
    p.ok('script', 's.safetensors', '--model', 'tiny', '--rounds', 2, '--slots', 2)
    p.ok('record', 'tiny', '--script', 's.safetensors', '--level', 'deep', '-o', 'clean.tape')


def reduce(p, tape, op, *options, folder='bundle', rnd=1, of='tiny'):
    shutil.rmtree(folder, ignore_errors=True)
    said = json.loads(p.ok('reduce', tape, of, '--op', op, '--round', rnd, '-o', folder, '--json', *options).stdout)
    size = sum(os.path.getsize(x) for x in glob.glob(folder + '/**', recursive=True) if os.path.isfile(x))
    check(said['bytes'] == size, f'{op}: says {said["bytes"]} bytes, has {size}')
    check(not os.path.exists(folder + '.part'), f'{op}: .part is left')
    return said


def run(folder='bundle'):
    """Builds test.c of a bundle and runs it; the sources beside it are the same in all bundles, and built once."""
    if not os.path.exists('objects'):
        os.mkdir('objects')
        for c in glob.glob(folder + '/*/*.c'):
            subprocess.run(['cc', *WARN, *FLAGS, '-I' + folder, '-c', c, '-o',
                            f'objects/{os.path.basename(c)}.o'], check=True)
    built = subprocess.run(['cc', *WARN, *FLAGS, '-I' + folder,
                            folder + '/test.c', *glob.glob('objects/*.o'), '-o', folder + '/test', '-lm'],
                           stderr=subprocess.PIPE, text=True)
    check(built.returncode == 0, f'test.c: {built.stderr[:900]}')
    r = subprocess.run(['./test'], cwd=folder, stdout=subprocess.PIPE, text=True)
    return r.returncode, r.stdout


def make_alone_builds_a_bundle(p):
    model(p)
    reduce(p, 'clean.tape', 's0.attn.q')
    r = subprocess.run(['make', '-s', '-C', 'bundle'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(r.returncode == 0 and 's0.attn.q: same' in r.stdout, r.stdout[-800:])
    # somebody else's flags: all warnings, and a leak is an exit status
    flags = ' '.join([*WARN, *FLAGS, '-fsanitize=leak', '-I.'])
    r = subprocess.run(['make', '-B', '-s', '-C', 'bundle', f'CFLAGS={flags}'], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True)
    check(r.returncode == 0 and 's0.attn.q: same' in r.stdout, r.stdout[-800:])


def a_folder_may_end_in_a_slash(p):
    model(p)
    reduce(p, 'clean.tape', 's0.attn.q', folder='slash/')
    check(os.path.exists('slash/test.c'), 'no bundle')
    p.refused(2, 'is there', 'reduce', 'clean.tape', 'tiny', '1/-/s0.attn.q', '-o', 'slash/')
    p.refused(2, 'found no name', 'reduce', 'clean.tape', 'tiny', '1/-/s0.attn.q', '-o', '')


def every_kind_of_op_is_the_same_on_a_clean_run(p):
    model(p)
    for op in ('ids', 'x0', 's0.attn.mix_pre', 's0.attn.collapse', 's1.attn.norm', 's0.attn.qr', 's0.attn.kv', 's1.attn.o',
               's0.attn.o_qdq', 's0.attn.wo_a', 's2.attn_out', 's0.attn.stream', 's0.ffn.scores', 's1.ffn.ids',
               's0.ffn.gate', 's0.ffn.h', 's1.ffn.slot', 's0.ffn.shared', 's1.ffn_out', 'head.logits', 'head.biased',
               'confidence'):
        said = reduce(p, 'clean.tape', op)
        code, text = run()
        check(code == 0 and said['illegal'] == 0 and said['elements'] > 0, f'{op}: {text}')
        check(all(': same' in x for x in text.splitlines()), f'{op}: {text}')
    for op in ('main_x', 's1.main_kv'):
        reduce(p, 'clean.tape', op, '--slot', 1)
        code, text = run()
        check(code == 0 and ': same' in text, f'{op}: {text}')


def a_fault_differs_where_the_certificate_says(p):
    model(p)
    for i, fault in enumerate(('row-swap@s0.attn_out:round=1', 'rope-late@s1.attn.q:round=1',
                               'scale-255@s0.ffn.slot:round=1', 'gain-missing@s1.attn.kv_norm:step=draft,round=1',
                               'router-no-root@s0.ffn.scores:round=1',
                               'pick-wrong@s1.ffn.ids:round=1', 'swiglu-swapped@s1.ffn.h:round=1')):
        p.ok('inject', 'tiny', '--script', 's.safetensors', '--fault', fault, '-o', f'f{i}.tape')
        origin = json.loads(p.ok('certify', f'f{i}.tape', 'tiny', '--json', exits=(1,)).stdout)['origins'][0]
        said = reduce(p, f'f{i}.tape', origin['op'])
        code, text = run()
        worst = re.findall(r'(\S+): DIFFERS.*worst index (\d+) ', text)
        check(code == 1 and said['illegal'] > 0, f'{fault}: exit {code}: {text}')
        check((origin['worst']['value'], str(origin['worst']['index'])) in worst, f'{fault}: {origin["worst"]}: {text}')
        check('planted fault' in open('bundle/README.md').read(), f'{fault}: README does not say so')
        for reference in glob.glob('bundle/data/*.reference.npy'):  # another implementation's result, and it is right
            shutil.copy(reference, reference.replace('.reference.', '.expected.'))
        code, text = run()
        check(code == 0, f'{fault}: the reference itself: {text}')


def an_op_is_named_as_elsewhere(p):
    """By a reference, with its tape or without, and by a hidden op as plan and inject have it."""
    model(p)
    for words in (['clean.tape', 'tiny', '1/-/s1.attn_out'], ['clean.tape', 'tiny', 'clean.tape:1/-/s1.attn_out'],
                  ['clean.tape:1/-/s1.attn_out@r0[3,5]', 'tiny'],
                  ['clean.tape', 'tiny', '--op', 's1.attn.wo_b', '--round', 1]):
        shutil.rmtree('named', ignore_errors=True)
        said = json.loads(p.ok('reduce', *words, '-o', 'named', '--json').stdout)
        check((said['op'], said['round'], said['elements']) == ('s1.attn_out', 1, 2560), f'{words}: {said}')
    p.refused(2, ['s0.attn.qr', 's0.attn.kv'], 'reduce', 'clean.tape', 'tiny', '--op', 's0.attn.norm.qdq', '--round', 1)
    p.refused(2, 'other.tape', 'reduce', 'clean.tape', 'tiny', 'other.tape:1/-/x0')


def rows_make_it_small(p):
    model(p)
    p.ok('inject', 'tiny', '--script', 's.safetensors', '--fault', 'nan@s0.attn.norm:round=1,row=3', '-o', 'row.tape')
    whole = reduce(p, 'row.tape', 's0.attn.norm')
    few = reduce(p, 'row.tape', 's0.attn.norm', '--rows', '3')
    check(few['bytes'] < whole['bytes'] and few['rows'] == 1 and whole['rows'] > 1, f'{few} {whole}')
    check(few['illegal'] == whole['illegal'] > 0, f'{few["illegal"]} of {whole["illegal"]} illegal elements')
    code, text = run()
    check(code == 1 and re.search(r'first index \d+ \[3, ', text), text)
    other = reduce(p, 'row.tape', 's0.attn.norm', '--rows', '0-2')
    check(other['illegal'] == 0 and run()[0] == 0, 'rows without the fault differ')
    block = reduce(p, 'clean.tape', 's0.attn.o', '--rows', '6')  # a slot's block stays whole
    check(block['rows'] == block['rows_total'] // 2, block)
    code, text = run()
    check(code == 0, text)
    ids = np.load('bundle/data/block_pos.npy')
    check(len(ids) == block['rows'], f'{len(ids)} positions')


def ops_of_the_control_are_bundles(p):
    """EXL3 linears, experts and head, sums that two ranks cut, logits and Markov terms that are rounded to bf16."""
    model(p)
    if not os.path.exists('delivered'):
        shutil.copytree('tiny', 'delivered')
        deliver('delivered')
        p.ok('record', 'delivered', '--script', 's.safetensors', '--level', 'deep', '--arm', 'k2-tp2', '--tp', 2, '-o',
             'control.tape')
    calls = ''
    for op in ('s0.attn.qr', 's0.attn_out', 's1.ffn.gate', 's0.ffn.slot', 'head.logits', 'head.biased'):
        said = reduce(p, 'control.tape', op, of='delivered')
        code, text = run()
        check(code == 0 and said['illegal'] == 0 and said['elements'] > 0, f'{op}: {text}')
        calls += open('bundle/test.c').read()
    for call in ('bundle_exl3(', 'bundle_parts(', 'KRN_ACC_BLOCKED, 2, KRN_OUT_F32', 'krn_round_bf16_f32_ref(',
                 'token_before, true, '):
        check(call in calls, f'no {call}')
    reduce(p, 'control.tape', 's0.attn.qr', of='delivered')
    tiles = np.load('bundle/data/attn.wq_a.npy')
    tiles[0, 0, 0] ^= 1
    np.save('bundle/data/attn.wq_a.npy', tiles)
    code, text = run()
    check(code == 1 and 'THE TWIN HERE' in text, f'a flipped bit of a tile: {text}')


def a_changed_input_is_noticed(p):
    model(p)
    reduce(p, 'clean.tape', 's0.attn.qr')
    name = 'bundle/data/s0.attn.norm.npy'
    x = np.load(name)
    x[0, 0] ^= 0x4000
    np.save(name, x)
    code, text = run()
    check(code == 1 and 'THE TWIN HERE' in text, text)


def what_cannot_be_reduced_is_refused(p):
    model(p)
    shutil.rmtree('no', ignore_errors=True)
    arguments = ('reduce', 'clean.tape', 'tiny', '-o', 'no')
    p.refused(2, 'no op and round', *arguments)
    p.refused(2, 'SLOT', *arguments, 'nonsense')
    p.refused(2, 'both', *arguments, '1/-/x0', '--op', 'x0')
    p.refused(3, 'nope', *arguments, '--op', 'nope', '--round', 1)
    p.refused(3, 'round 9', *arguments, '--op', 'x0', '--round', 9)
    p.refused(3, 'copied rows', *arguments, '--op', 's0.window', '--round', 1)
    p.refused(3, 'slot 7', *arguments, '1/7/main_x')
    p.refused(2, '--slot', *arguments, '--op', 'main_x', '--round', 1)
    p.refused(2, '--rows', *arguments, '1/-/x0', '--rows', '90-91')
    p.refused(2, '--rows', *arguments, '1/-/x0', '--rows', '2-')
    check(not os.path.exists('no') and not os.path.exists('no.part'), 'a refusal left a folder')
    p.ok('reduce', 'clean.tape', 'tiny', '1/-/x0', '-o', 'there')
    p.refused(2, 'there', 'reduce', 'clean.tape', 'tiny', '1/-/x0', '-o', 'there')
    os.replace('there', 'there.part')
    p.refused(2, ['there.part', 'remove it'], 'reduce', 'clean.tape', 'tiny', '1/-/x0', '-o', 'there')
    shutil.rmtree('there.part')


if __name__ == '__main__':
    main([make_alone_builds_a_bundle, a_folder_may_end_in_a_slash, every_kind_of_op_is_the_same_on_a_clean_run,
          a_fault_differs_where_the_certificate_says, an_op_is_named_as_elsewhere, rows_make_it_small,
          ops_of_the_control_are_bundles, a_changed_input_is_noticed,
          what_cannot_be_reduced_is_refused])
