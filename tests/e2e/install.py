"""Installing: install.py BINARY BUILD [TEST ...]

What cmake --install and the Debian package put where, and that it runs from there."""
import glob, os, shutil, subprocess, sys
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
    script = 'root/share/bash-completion/completions/sparktape'
    for typed, wanted in (('rec', {'record', 'recover'}), ('record --arm native-packed-', {'native-packed-kx'}),
                          ('classify --ow', {'--own'}), ('browse root/sh', {'root/share'})):
        got = set(said('bash', '-c', COMPLETE, 'bash', script, 'root/bin/sparktape', *typed.split(' ')).split())
        check(got == wanted, f'{typed}: found {got}, wanted {wanted}')


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
    main([an_installed_tree_is_whole, a_package_is_whole, words_are_completed, another_program_writes_a_tape])
