"""Parts of analyses, run as processes of their own, come together as the whole: report.py BINARY [TEST ...]"""
import html.parser, json, os, shutil, subprocess
import xml.etree.ElementTree as xml
from lib import check, main

FAST = ('--threads', 1, '--quiet')
N = 4


def setup(p):
    """A checkpoint, a clean tape and one with a planted fault, made once."""
    if not os.path.exists('f.tape'):
        p.ok('synth', 'tiny', '--config', 'tiny')
        p.ok('script', 's.safetensors', '--model', 'tiny', '--rounds', 8, '--slots', 2)
        p.ok('record', 'tiny', '--script', 's.safetensors', '-o', 'a.tape', '--level', 'deep')
        p.ok('inject', 'tiny', '--fault', 'row-swap@s0.attn.q', '--script', 's.safetensors', '-o', 'f.tape')


def folder(name):
    shutil.rmtree(name, ignore_errors=True)
    os.mkdir(name)
    return name


def lines(text):
    return [json.loads(x) for x in text.splitlines()]


def merged(p, *results, exits=(0, 1)):
    """The merged results, and the report's own last line."""
    out = lines(p.ok('report', *results, '--json', exits=exits).stdout)
    check(out[-1]['type'] == 'report', str(out[-1])[:200])
    return out[:-1], out[-1]


def same(got, want, what):
    """Equal but for the time it took and the parts it is made of."""
    for key in sorted(set(got) | set(want)):
        check(key in ('seconds', 'shard') or got.get(key) == want.get(key),
              f'{what}: {key}: {str(got.get(key))[:300]}, wanted {str(want.get(key))[:300]}')


def parts(p, out, *command):
    """The parts of command as a Slurm array runs them: one shell each, all at the same time."""
    folder(out)
    line = '"$SPARKTAPE" "$@" --shard $((SLURM_ARRAY_TASK_ID + 1))/%d --json > %s/$SLURM_ARRAY_TASK_ID.json' % (N, out)
    running = [subprocess.Popen(['sh', '-c', line, 'sh', *map(str, command + FAST)], stdin=subprocess.DEVNULL,
                                env=dict(p.env, SPARKTAPE=p.path, SLURM_ARRAY_TASK_ID=str(i))) for i in range(N)]
    for r in running:
        check(r.wait(120) in (0, 1), f'{command}: exit {r.returncode}')


# ---- tests ----

def four_processes_come_together_as_the_whole(p):
    setup(p)
    for out, command, exits in (('certify-a', ('certify', 'a.tape', 'tiny'), (0,)),
                                ('certify-f', ('certify', 'f.tape', 'tiny'), (1,)),
                                ('classify-f', ('classify', 'f.tape', 'tiny', '--control', 'native-expanded'), (1,)),
                                ('accept-a', ('accept', 'a.tape', 'tiny', '--arms', 'native-packed,mirror'), (0,)),
                                ('parity-f', ('parity', 'f.tape', 'tiny', '--modes', 'eager', '--tps', 1), (1,))):
        whole = json.loads(p.ok(*command, '--json', *FAST, exits=(0, 1)).stdout)
        parts(p, out, *command)
        (got,), last = merged(p, out, exits=exits)
        same(got, whole, out)
        check(not last['errors'] and got['shard'] == {'n': N, 'have': [1, 2, 3, 4]}, f'{out}: {last["errors"]}')
        # any two of them first: a report of reports
        reports = folder(out + '-two')
        for name, half in (('x', '02'), ('y', '13')):
            with open(f'{reports}/{name}.json', 'w', encoding='utf-8') as f:
                f.write(p.ok('report', *(f'{out}/{i}.json' for i in half), '--json', exits=(1,)).stdout)
        (again,), last = merged(p, reports, exits=exits)
        check(again == got and not last['errors'], f'{out}: a report of reports differs')
    check(whole['values'] > 100, str(whole)[:200])


def what_is_missing_or_twice_is_named(p):
    setup(p)
    parts(p, 'some', 'certify', 'a.tape', 'tiny')
    os.remove('some/1.json')
    os.remove('some/3.json')
    (got,), last = merged(p, 'some', exits=(1,))
    check(last['errors'] == ['2 of 4 shards of certify a.tape are missing: 2, 4'] and got['verdict'] == 'PARTIAL',
          str(last['errors']))
    text = p.ok('report', 'some', 'some/2.json', exits=(1,)).stdout
    for part in ('PARTIAL',
                 'shard 3 of 4 of certify a.tape is there twice: in some/0.json, some/2.json and in some/2.json'):
        check(part in text, text)


class Balance(html.parser.HTMLParser):
    """Every element is closed, in order; nothing is fetched or run."""
    VOID = {'meta', 'br', 'link', 'img', 'input', 'hr'}

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], {}

    def handle_starttag(self, tag, attributes):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        check(tag not in ('script', 'link', 'img', 'iframe'), f'<{tag}> at {self.getpos()}')
        for name, value in attributes:
            check(not name.startswith('on') and not (name in ('href', 'src') and not value.startswith('#')),
                  f'{name}="{value}" at {self.getpos()}')
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen[tag] = self.seen.get(tag, 0) + 1

    def handle_endtag(self, tag):
        check(self.open and self.open[-1] == tag, f'</{tag}> in {self.open[-3:]} at {self.getpos()}')
        self.open.pop()


def files_that_programs_read(p):
    setup(p)
    shutil.copyfile('f.tape', 'a <b> & "c".tape')
    results = folder('results')
    for name, command in (('certify', ('certify', 'f.tape', 'tiny')), ('clean', ('certify', 'a.tape', 'tiny')),
                          ('odd', ('certify', 'a <b> & "c".tape', 'tiny', '--tap', 's0.*')),
                          ('diff', ('diff', 'a.tape', 'f.tape')),
                          ('parity', ('parity', 'f.tape', 'tiny', '--modes', 'eager', '--tps', 1, '--rounds', '0-2')),
                          ('accept', ('accept', 'a.tape', 'tiny')), ('classify', ('classify', 'f.tape', 'tiny')),
                          ('score', ('scorecard', 'tiny', '--kinds', 'row-swap', '--ops', 's0.attn.*', '--arms',
                                     'native-packed'))):
        with open(f'{results}/{name}.json', 'w', encoding='utf-8') as f:
            f.write(p.ok(*command, '--json', *FAST, exits=(0, 1), timeout=300).stdout)
    with open('w.json', 'w', encoding='utf-8') as f:
        json.dump({'schema': 1, 'waivers': [{'value': 's0.attn.q', 'cause': 'row swap*', 'max_count': 10**6, 'reason':
                                             'planted', 'expires': '2099-12-31', 'tape': 'f.tape'}]}, f)
    text = p.ok('report', results, '--waivers', 'w.json', '-o', 'written', '--force', exits=(1,)).stdout
    check(text.splitlines()[0].startswith('FAIL  8 results of 8 files'), text)
    root = xml.parse('written/report.xml').getroot()
    suites = {s.get('name'): s for s in root}
    check(len(suites) == 8, str(list(suites)))
    for name, s in suites.items():
        cases = s.findall('testcase')
        check(len(cases) == int(s.get('tests')), name)
        for kind in ('failure', 'skipped'):
            n = sum(c.find(kind) is not None for c in cases)
            check(n == int(s.get({'failure': 'failures'}.get(kind, kind))), f'{name}: {n} {kind}')
    odd = [s for name, s in suites.items() if 'a <b> & "c".tape' in name]
    check(len(odd) == 1 and int(odd[0].get('failures')) == 2, str(list(suites)))  # s0.attn.q and the verdict
    waived = [s for name, s in suites.items() if name.startswith('certify f.tape')]
    check(len(waived) == 1 and waived[0].get('failures') == '0' and waived[0].get('skipped') == '1', str(list(suites)))
    with open('written/report.html', encoding='utf-8') as f:
        page = f.read()
    b = Balance()
    b.feed(page)
    b.close()
    check(not b.open and b.seen['svg'] >= 8 and b.seen['title'] > 500, f'{b.open} {b.seen}')
    for part in ('values by ways to run', 'by stages', 'rows by columns', 'draft was accepted', 'faults by kinds of op',
                 'stages by arms', 'certificates side by side', 'prefers-color-scheme:dark', 'WAIVED',
                 'synthetic traffic', 'columns: stages'):
        check(part in page, f'"{part}" is not in the page')
    with open('written/report.json', encoding='utf-8') as f:
        check(len(lines(f.read())) == 9, 'report.json')
    check(os.path.getsize('written/report.txt') > 1000, 'report.txt')


def a_waiver_is_a_pass_until_its_day(p):
    setup(p)
    with open('f.json', 'w', encoding='utf-8') as f:
        f.write(p.ok('certify', 'f.tape', 'tiny', '--json', *FAST, exits=(1,)).stdout)
    text = p.ok('certify', 'f.tape', 'tiny', *FAST, exits=(1,)).stdout
    rows = [x.split() for x in text.splitlines() if x.startswith('    0 ')]
    check(len(rows) == 1 and rows[0][:4] == ['0', '8', '-', 's0.attn.q'], text)  # one line for its eight rounds
    step = 'sparktape reduce f.tape tiny --op s0.attn.q --round 0 -o DIR'
    check(step in text, text)
    p.ok(*step.replace('DIR', folder('issue') + '/q').split()[1:])
    check(' round 0 (rounds 8) op s0.attn.q' in p.ok('report', 'f.json', exits=(1,)).stdout, 'the report says each round')
    waiver = {'value': '*', 'cause': '*', 'max_count': 10**6, 'reason': 'planted', 'expires': '2099-12-31'}
    for change, status, words in (({}, 0, ('WAIVED', 'planted; until 2099-12-31')),
                                  ({'expires': '2020-02-29'}, 1, ('its waiver expired on 2020-02-29: planted',)),
                                  ({'max_count': 3}, 1, ("above its waiver's ceiling: count ", ' of at most 3')),
                                  ({'value': 'nothing'}, 1, ('waiver 1 (nothing: planted) matches nothing',))):
        with open('one.json', 'w', encoding='utf-8') as f:
            json.dump({'schema': 1, 'waivers': [dict(waiver, **change)]}, f)
        for command in (('report', 'f.json'), ('certify', 'f.tape', 'tiny', *FAST)):
            text = p.ok(*command, '--waivers', 'one.json', exits=(status,)).stdout
            for part in words:
                check(part in text, f'{command} {change}: "{part}" is not in:\n{text}')
            check(command[0] == 'certify' or 's0.attn.q' in text, text)  # it stays listed
            check(text.startswith('FAIL' if status else 'WAIVED'), text)
        text = p.ok('certify', 'f.tape', 'tiny', *FAST, '--waivers', 'one.json', '--json', exits=(status,)).stdout
        said = json.loads(text)
        check(said['verdict'] == 'FAIL' and said.get('waived') == (status == 0), f'{change}: {said.get("waived")}')
        with open('judged.json', 'w', encoding='utf-8') as f:  # a report goes by its own waivers
            f.write(text)
        r = p.ok('report', 'judged.json', '--json', exits=(1,)).stdout
        check('"waived":true' not in r and '"waived":false' not in r, r[:400])


def bad_input_is_refused(p):
    setup(p)
    for text, words in (('', 'found nothing'), ('{"schema": 1, "type": "certificate"}', 'found no "rounds"'),
                        ('{"schema": 1,\n "type": }', 'object 1: line 2'), ('{"schema": 7, "type": "parity"}', 'wanted 1')):
        with open('bad.json', 'w', encoding='utf-8') as f:
            f.write(text)
        p.refused(3, ('bad.json', words), 'report', 'bad.json')
    p.refused(3, 'nowhere.json', 'report', 'nowhere.json')
    p.refused(3, 'found no *.json in this folder', 'report', folder('empty'))
    p.refused(2, 'RESULT', 'report')
    with open('fine.json', 'w', encoding='utf-8') as f:
        f.write(p.ok('certify', 'a.tape', 'tiny', '--rounds', '0-1', '--json', *FAST).stdout)
    p.refused(2, 'fine.json', 'report', 'fine.json', '--html', 'fine.json')
    p.refused(2, 'twice', 'report', 'fine.json', '--html', 'both', '--junit', 'both')
    p.refused(2, 'wanted a folder', 'report', 'fine.json', '-o', 'bad.json')
    # what is there is kept, before anything is written
    with open('mine', 'w', encoding='utf-8') as f:
        f.write('mine')
    shutil.copy('mine', os.path.join(folder('out'), 'report.xml'))
    for option, name in (('--html', 'mine'), ('--junit', 'mine'), ('-o', 'out')):
        p.refused(2, '--force', 'report', 'fine.json', option, name)
    check(os.path.getsize('mine') == 4 and os.listdir('out') == ['report.xml'], 'a file was replaced, or one was written')
    p.ok('report', 'fine.json', '-o', 'out', '--force')
    check(os.path.getsize('out/report.xml') > 4, '--force')
    with open('bad.json', 'w', encoding='utf-8') as f:
        f.write('{"schema": 1, "waivers": [{"value": "*"}]}')
    p.refused(3, ('bad.json: waiver 1', '"cause"'), 'report', 'fine.json', '--waivers', 'bad.json')
    p.refused(3, ('bad.json: waiver 1', '"cause"'), 'certify', 'a.tape', 'tiny', *FAST, '--waivers', 'bad.json')


if __name__ == '__main__':
    main([four_processes_come_together_as_the_whole, what_is_missing_or_twice_is_named, files_that_programs_read,
          a_waiver_is_a_pass_until_its_day, bad_input_is_refused])
