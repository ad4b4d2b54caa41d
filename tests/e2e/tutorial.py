"""The documents' own examples: tutorial.py BINARY [TEST ...]

Blocks of ```console in docs/tutorial.md and docs/own-engine.md are typed as they stand, in one folder; what they say is
printed must be, in that order, with `...` for anything and with runs of spaces alike."""
import os, re, shutil, subprocess
from lib import check, main

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'docs')


def blocks(document, kind):
    with open(os.path.join(DOCS, document), encoding='utf-8') as f:
        return re.findall(rf'^```{kind}\n(.*?)^```', f.read(), re.M | re.S)


def examples(document):
    """[(command, [expected line ...]) ...]"""
    found = []
    for line in ''.join(blocks(document, 'console')).splitlines():
        if line.startswith('$ '):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def squeezed(text):
    return re.sub(r' +', ' ', text.strip())


def run_all(p, document):
    env = dict(p.env, PATH=os.path.abspath('bin') + os.pathsep + os.environ['PATH'])
    for command, wanted in examples(document):
        r = subprocess.run(['bash', '-c', command], cwd='work', env=env, stdin=subprocess.DEVNULL, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        check(wanted or r.returncode == 0, f'$ {command}: exit {r.returncode}\n{r.stdout[-900:]}')
        lines = [squeezed(x) for x in r.stdout.splitlines()]
        for want in map(squeezed, wanted):
            at = want.split('...')[0].rstrip()
            if not at:
                continue
            while lines and not lines[0].startswith(at):
                lines.pop(0)
            check(lines, f'$ {command}: no line (in its place) that begins "{at}"; it prints\n{r.stdout[-1500:]}')
            lines.pop(0)


def start(p):
    if os.path.exists('work'):
        return
    for folder in ('bin', 'work'):
        os.mkdir(folder)
    os.symlink(p.path, 'bin/sparktape')


def the_tutorial_runs_as_it_stands(p):
    shutil.rmtree('work', ignore_errors=True)
    shutil.rmtree('bin', ignore_errors=True)
    start(p)
    run_all(p, 'tutorial.md')


def another_engines_values_are_imported_as_it_stands(p):
    start(p)
    with open('work/rename.py', 'w') as f:
        f.write(blocks('own-engine.md', 'python')[0])
    run_all(p, 'own-engine.md')


if __name__ == '__main__':
    main([the_tutorial_runs_as_it_stands, another_engines_values_are_imported_as_it_stands])
