"""Each folder includes only what lies to its left (README, "Read the code"); curses only inside tui/.

layers.py SOURCE_FOLDER"""
import os, re, sys

ORDER = ['base', 'formats', 'kernels', 'engine', 'capture', 'serve', 'replay', 'tui']


def faults(root):
    seen = 0
    for place, folder in enumerate(ORDER):
        path = os.path.join(root, folder)
        for name in sorted(os.listdir(path)) if os.path.isdir(path) else []:
            if not name.endswith(('.c', '.h', '.cu', '.cuh')):
                continue
            for number, line in enumerate(open(os.path.join(path, name), encoding='utf-8'), 1):
                seen += 1
                m = re.match(r'\s*#\s*include\s*"([^"/]+)/', line)
                if m and (m.group(1) not in ORDER or ORDER.index(m.group(1)) > place):
                    yield f'{folder}/{name}:{number}: includes {m.group(1)}/'
                if folder != 'tui' and re.search(r'#\s*include\s*[<"](n?curses|panel)', line):
                    yield f'{folder}/{name}:{number}: curses outside tui/'
    if seen < 10000:
        yield f'only {seen} lines were read: is {root} the source folder?'


if __name__ == '__main__':
    found = list(faults(sys.argv[1]))
    print('\n'.join(found) or 'layers hold')
    sys.exit(1 if found else 0)
