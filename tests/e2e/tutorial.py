"""The documents' own examples: tutorial.py BINARY [TEST ...]

Blocks of ```console in docs/tutorial.md and docs/own-engine.md are typed as they stand, in one folder. Where a block shows
lines below a command, these are all that it prints: `...` in a line stands for anything in it, a line of its own for any
lines, runs of spaces are alike. Of a command without lines below it only the exit code matters."""
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


def difference(wanted, printed):
    """What the printed text is not as wanted in; None: it is."""
    wanted, lines, gap = [squeezed(x) for x in wanted], [squeezed(x) for x in printed.splitlines()], False
    for want in filter(None, wanted):
        if want == '...':
            gap = True
            continue
        pattern = re.compile('.*'.join(map(re.escape, want.split('...'))) + '$')
        while lines and not pattern.match(lines[0]) and (gap or not lines[0]):
            lines.pop(0)
        if not lines or not pattern.match(lines[0]):
            return f'wanted "{want}", found "{lines[0] if lines else "nothing more"}"'
        lines.pop(0)
        gap = False
    more = [] if gap else list(filter(None, lines))
    return f'found more: "{more[0]}"' if more else None


def a_difference_is_found(p):
    text = 'one  2\n\nthree 3.5 s\nfour\n'
    for wanted in (['one 2', 'three 3.5 s', 'four'], ['one ...', '', 'three ... s', 'four'], ['...', 'four'],
                   ['one 2', '...'], ['one 2', '...', 'four'], ['...']):
        check(difference(wanted, text) is None, f'{wanted}: {difference(wanted, text)}')
    for wanted in (['one 2'], ['one 2', 'four'], ['three 3.5 s', 'four'], ['one', '...'], ['one 2', 'three ... ms', 'four'],
                   ['one 2', 'three 3.5 s', 'four', 'five'], ['four', '...']):
        check(difference(wanted, text), f'{wanted} is no difference')


def run_all(p, document):
    env = dict(p.env, PATH=os.path.abspath('bin') + os.pathsep + os.environ['PATH'])
    for command, wanted in examples(document):
        r = subprocess.run(['bash', '-c', command], cwd='work', env=env, stdin=subprocess.DEVNULL, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        check(wanted or r.returncode == 0, f'$ {command}: exit {r.returncode}\n{r.stdout[-900:]}')
        problem = difference(wanted, r.stdout) if wanted else None
        check(not problem, f'$ {command}: {problem}; it prints\n{r.stdout[-1500:]}')


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
    main([a_difference_is_found, the_tutorial_runs_as_it_stands, another_engines_values_are_imported_as_it_stands])
