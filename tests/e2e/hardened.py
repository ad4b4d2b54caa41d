"""What the compiler and the linker were told about hostile input is in the program: hardened.py BINARY"""
import subprocess, sys

with open(sys.argv[1], 'rb') as f:
    if b'__asan_init' in (data := f.read()) or b'__tsan_init' in data:
        sys.exit(77)  # a sanitizer's build has its own checks
try:
    said = subprocess.run(['readelf', '-W', '-h', '-l', '-d', '--dyn-syms', sys.argv[1]], stdout=subprocess.PIPE, text=True,
                          env={'LC_ALL': 'C', 'PATH': '/usr/bin:/bin'}, check=True).stdout
except FileNotFoundError:
    sys.exit(77)
lines = [x.split() for x in said.splitlines()]
stack = next((x for x in lines if x[:1] == ['GNU_STACK']), [])
facts = {
    'position independent': ['Type:', 'DYN'] in [x[:2] for x in lines],
    'relocations read-only': any(x[:1] == ['GNU_RELRO'] for x in lines),
    'relocations bound at start': any('NOW' in x for x in lines if x[1:2] in (['(FLAGS_1)'], ['(FLAGS)'])),
    'no stack that runs': 'RW' in stack,
    'stack protector': '__stack_chk_fail' in said,
    'bounds of library calls': '__snprintf_chk' in said or '__vsnprintf_chk' in said,
}
for what, holds in facts.items():
    if not holds:
        print(f'{sys.argv[1]}: not there: {what}')
sys.exit(not all(facts.values()))
