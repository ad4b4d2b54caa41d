"""Installing: install.py BINARY BUILD [TEST ...]

What cmake --install and the Debian package put where, and that it runs from there."""
import glob, os, re, shutil, subprocess, sys
from lib import check, main

BUILD = sys.argv.pop(2)
WANTED = ('bin/sparktape', 'share/man/man1/sparktape.1', 'share/man/man1/sparktape-browse.1',
          'include/sparktape.h', 'lib/libsparktape.so', 'lib/pkgconfig/sparktape.pc', 'share/doc/sparktape/examples/tap.cu',
          'share/bash-completion/completions/sparktape', 'share/doc/sparktape/LICENSE', 'share/doc/sparktape/README.md')


def said(*command):
    r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(r.returncode == 0, f'{" ".join(command)}: exit {r.returncode}\n{r.stdout[-900:]}')
    return r.stdout


def all_there(root):
    for name in WANTED:
        check(os.path.getsize(os.path.join(root, name)) > 0, f'{root}: no {name}')
    check(said(os.path.join(root, 'bin/sparktape'), '--version').startswith('sparktape '), 'version')


def an_installed_tree_is_whole(p):
    shutil.rmtree('root', ignore_errors=True)
    said('cmake', '--install', BUILD, '--prefix', os.path.abspath('root'))
    all_there('root')


def a_package_is_whole(p):
    for old in glob.glob('*.deb'):
        os.unlink(old)
    shutil.rmtree('deb', ignore_errors=True)
    said('cpack', '-G', 'DEB', '--config', os.path.join(BUILD, 'CPackConfig.cmake'), '-B', '.')
    (deb,) = glob.glob('*.deb')
    fields = said('dpkg-deb', '--field', deb)
    for word in ('Package: sparktape', 'libmsgpack', 'libncursesw', 'libuv1'):
        check(word in fields, f'{word} is not in:\n{fields}')
    said('dpkg-deb', '--extract', deb, 'deb')
    all_there('deb/usr')


COMPLETE = '''source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sparktape; printf '%s\\n' "${COMPREPLY[@]}"'''


def words_are_completed(p):
    for typed, wanted in (('rec', {'record', 'recover'}), ('record --arm native-packed-', {'native-packed-kx'}),
                          ('classify --ow', {'--own'}), ('browse root/sh', {'root/share'}), ('help cert', {'certify'}),
                          ('record --level ', {'io', 'v1', 'deep'}), ('record --mode = g', {'graph'}),
                          ('parity --modes eager,', {'eager,eager', 'eager,graph'}), ('quantize --head o', set()),
                          ('synth --config ti', {'tiny'}), ('browse --config root/bi', {'root/bin'})):
        got = completed(typed)
        check(got == wanted, f'{typed}: found {got}, wanted {wanted}')


def completed(typed):
    script = 'root/share/bash-completion/completions/sparktape'
    return set(said('bash', '-c', COMPLETE, 'bash', script, 'root/bin/sparktape', *typed.split(' ')).split())


def fixed_words_are_those_of_the_program(p):
    """What is offered as an option's value, its line of --help names."""
    with open('root/share/bash-completion/completions/sparktape', encoding='utf-8') as f:
        words = {name: line[1].split() for line in (x.split(') echo ') for x in f.read().replace(' ;;', '').splitlines())
                 if len(line) == 2 for name in line[0].strip().split(' | ')}
    lines = [(c, line) for c in re.findall(r'^  ([a-z]+)', p.ok('--help').stdout, re.M)
             for line in re.findall(r'^  (--.*)$', p.ok(c, '--help').stdout, re.M)]
    seen = set()
    for command, line in lines:
        option = line.split()[0]
        if option not in words or (command, option) in (('quantize', '--head'), ('browse', '--config')):
            continue
        seen.add(option)
        for word in words[option]:
            check(re.search(rf'\b{word}\b', line), f'{command}: {word} is not in: {line}')
    check(len(seen) > 10 and seen == set(words), f'options that no command has: {set(words) - seen}')


def another_program_writes_a_tape(p):
    """The example against the installed library: as C over host memory, which runs here; as CUDA, which must compile."""
    example = 'root/share/doc/sparktape/examples/tap.cu'
    flags = said('env', 'PKG_CONFIG_PATH=root/lib/pkgconfig', 'pkg-config', '--cflags', '--libs', 'sparktape').split()
    said('cc', '-Wall', '-Werror', '-x', 'c', '-DNO_CARD', example, '-x', 'none', *flags, '-Wl,-rpath,root/lib', '-o',
         'tap')
    said('./tap', 'tap.tape')
    check('sound: ' in p.ok('doctor', 'tap.tape').stdout, 'doctor')
    shown = p.ok('show', 'tap.tape:2/0/main_x[1,63]').stdout
    check('9.75' in shown, f'(63 - 32) / 4 + 2 is not in: {shown}')
    if shutil.which('nvcc'):
        said('nvcc', '-c', example, *[x for x in flags if x.startswith('-I')], '-o', 'tap.o')


if __name__ == '__main__':
    main([an_installed_tree_is_whole, a_package_is_whole, words_are_completed, fixed_words_are_those_of_the_program,
          another_program_writes_a_tape])
