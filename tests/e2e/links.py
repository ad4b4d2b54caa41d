"""What the documents name is there: links.py ROOT

Files in backticks and targets of links, from the root or beside the document."""
import os, re, subprocess, sys

ROOT = sys.argv[1]
KINDS = 'c|h|cu|cuh|py|md|txt|json|jsonl|cmake|sh|bash|1'
FILE = re.compile(rf'`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+/?|[A-Za-z0-9_-]+\.(?:{KINDS}))`')
LINK = re.compile(r'\]\(([^)#:]+)\)')
STANDS = re.compile(r'(^|[/_])(OP|NAME)([._*]|$)')  # for others
MADE = {'test.c', 'report.json', 'report.txt', 'rename.py'}  # by the program, or in the document


def documents():
    for folder, below, names in os.walk(ROOT):
        below[:] = [d for d in below if d not in ('build', '.git') and not d.startswith('.')]
        yield from (os.path.join(folder, n) for n in names if n.endswith('.md'))


def wanted(text):
    for name in FILE.findall(text) + LINK.findall(text):
        known = name.split('/')[0]
        if STANDS.search(name) or name in MADE or name.startswith('build/'):
            continue
        if '/' not in name or os.path.isdir(os.path.join(ROOT, known)) or name in LINK.findall(text):
            yield name


def there(document, name):
    if any(os.path.exists(os.path.join(at, name)) for at in (ROOT, os.path.dirname(document))):
        return True
    if '/' in name:
        return False
    for _, below, names in os.walk(ROOT):  # a bare name: somewhere, once is enough
        below[:] = [d for d in below if d != 'build' and not d.startswith('.')]
        if name in names:
            return True
    return False


lost = [(os.path.relpath(d, ROOT), n) for d in sorted(documents())
        for n in sorted(set(wanted(open(d, encoding='utf-8').read()))) if not there(d, n)]
for document, name in lost:
    print(f'{document}: names {name}, which is not there')
sys.exit(bool(lost))
