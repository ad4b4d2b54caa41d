"""What of the conventions can be seen in a file's text (README, "Read the code"): format.py SOURCE_FOLDER

Lines, white space, indentation, comments and the guards of headers, of everything that is compiled or run."""
import os, re, sys

COLUMNS, LINES, INDENT = 124, 800, 4
C = ('.c', '.h', '.cu', '.cuh')
KINDS = (*C, '.py', '.cmake', '.sh', '.bash', '.in')
TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/', re.S)


def files(root):
    for folder, below, names in os.walk(root):
        below[:] = sorted(d for d in below if d == '.ci' or not d.startswith('.') and d != 'build')
        for name in sorted(names):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                with open(path, 'rb') as f:
                    data = f.read()
                if name.endswith(KINDS) or name == 'CMakeLists.txt' or data.startswith(b'#!'):
                    yield os.path.relpath(path, root), data


def of_lines(lines):
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            yield number, f'{len(line)} columns, wanted at most {COLUMNS}'
        if '\t' in line or '\r' in line:
            yield number, f'a {"tab" if chr(9) in line else "carriage return"}, wanted none'
        if line != line.rstrip():
            yield number, 'white space at the end, wanted none'


def of_c(text):
    """Statements begin at multiples of four columns; a line that goes on may begin anywhere."""
    bare = TEXT.sub(lambda m: '""' if m.group()[0] == '"' else '\n' * m.group().count('\n'), text)
    before = ''
    for number, line in enumerate(bare.split('\n'), 1):
        begins = before.endswith(('{', '}')) or before.endswith(';') and before.count('(') == before.count(')')
        indent = len(line) - len(line.lstrip(' '))
        if line.strip() and begins and indent % INDENT:
            yield number, f'a statement at column {indent}, wanted a multiple of {INDENT}'
        if '//' in line:
            yield number, 'a // comment, wanted /* */'
        before = line.rstrip() or before


def of_header(path, text, guards):
    """#ifndef, #define and the last #endif, of a name that is the path's, or the file's after TESTS_ or nothing."""
    m = re.search(r'^#ifndef (\w+)\n#define (\w+)\n', text, re.M)
    if not m or m.group(1) != m.group(2) or not text.rstrip().startswith('#endif', text.rstrip().rfind('\n') + 1):
        yield 1, 'no guard, wanted #ifndef, #define and, at the end, #endif'
        return
    name = m.group(1)
    whole, own = (re.sub(r'\W', '_', x.upper()) for x in (path, os.path.basename(path)))
    line = text.count('\n', 0, m.start()) + 1
    if name not in (whole, own, 'TESTS_' + own):
        yield line, f'guard {name}, wanted {whole}'
    if guards.setdefault(name, path) != path:
        yield line, f'guard {name}, which is that of {guards[name]}'


def of_file(path, data, guards):
    try:
        text = data.decode()
    except UnicodeDecodeError as why:
        yield data.count(b'\n', 0, why.start) + 1, f'byte {data[why.start]:#x} is not UTF-8'
        return
    lines = text.split('\n')
    if data and (not text.endswith('\n') or text.endswith('\n\n')):
        yield len(lines), f'{"no new line" if lines[-1] else "an empty line"} at the end, wanted one new line'
    if len(lines) > LINES + 1:
        yield LINES + 1, f'{len(lines) - 1} lines, wanted at most {LINES}'
    yield from of_lines(lines)
    if path.endswith(C):
        yield from of_c(text)
    if path.endswith(('.h', '.cuh')):
        yield from of_header(path, text, guards)


BAD = {  # each rule finds what it is there for
    'a.c': [('int a;\n', ''), ('int a; \n', 'white space'), ('int\ta;\n', 'a tab'), ('int a;\r\n', 'carriage return'),
            ('int a;', 'no new line'), ('int a;\n\n', 'an empty line'), ('int a;\n' * 801, '801 lines'),
            (f'/* {"x" * 120} */\n', '126 columns'), ('int a; // b\n', '// comment'), ('f("//", /*\n// */ 1);\n', ''),
            ('{\n   return;\n}\n', 'column 3'), ('{\n    for (a;\n         b; c)\n        f(d,\n          e);\n}\n', ''),
            (b'int a; /* \xff */\n', 'not UTF-8')],
    'b/a.h': [('#ifndef B_A_H\n#define B_A_H\n#endif\n', ''), ('#ifndef A_H\n#define A_H\n#endif\n', ''),
              ('#ifndef B_H\n#define B_H\n#endif\n', 'wanted B_A_H'), ('int a;\n', 'no guard'),
              ('#ifndef B_A_H\n#define B_A_H\nint a;\n', 'no guard'), ('#ifndef A_H\n#define B_H\n#endif\n', 'no guard')],
}


def blind():
    for path, cases in BAD.items():
        for text, word in cases:
            found = [why for _, why in of_file(path, text if isinstance(text, bytes) else text.encode(), {})]
            if not (any(word in why for why in found) if word else not found):
                yield f'this check: of {text[:60]!r} it says {found}, wanted {word!r}'


def faults(root):
    seen, guards = 0, {}
    for path, data in files(root):
        seen += 1
        for number, why in sorted(set(of_file(path, data, guards))):
            yield f'{path}:{number}: {why}'
    if seen < 500:
        yield f'only {seen} files were read: is {root} the source folder?'


if __name__ == '__main__':
    found = [*blind(), *faults(sys.argv[1])]
    print('\n'.join(found) or 'every file is as the conventions say')
    sys.exit(1 if found else 0)
