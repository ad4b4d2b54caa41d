"""What the end-to-end tests share: running the binary, reading safetensors, making cases with the oracle."""
import json, os, subprocess, sys
import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'oracle'))
import make_case, oracle  # noqa: E402


class Failed(Exception):
    pass


def check(ok, text):
    if not ok:
        raise Failed(text)


WRITERS = ('record', 'replay', 'import', 'export', 'recover', 'inject', 'manifest', 'weights')


class Product:
    """The binary under test; every run has a time limit and never a terminal."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        with open(self.path, 'rb') as f:
            self.sanitized = b'__asan_init' in f.read()  # starting it takes three times as long
        # a cache of its own: tests must not depend on, or leave anything in, the user's
        self.env = dict(os.environ, XDG_CACHE_HOME=os.path.abspath('cache'), LC_ALL='C.UTF-8', TZ='UTC')

    def run(self, *args, cwd=None, timeout=120, force=True):
        """force: tests replace the files of their last run."""
        if force and args and (args[0] in WRITERS and '-o' in args or args[0] == 'script' and '--model' in args):
            args = (args[0], '--force', *args[1:])
        return subprocess.run([self.path, *map(str, args)], cwd=cwd, env=self.env, timeout=timeout,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, errors='replace')

    def some(self, cases, turn):
        """All of the cases; of a sanitized binary every third, others with every turn."""
        return cases[turn % 3::3] if self.sanitized else cases

    def ok(self, *args, exits=(0,), **kw):
        r = self.run(*args, **kw)
        check(r.returncode in exits, f'{" ".join(map(str, args))}: exit {r.returncode}, wanted {exits}\n'
                                     f'{r.stdout[-800:]}{r.stderr[-800:]}')
        return r

    def refused(self, exits, words, *args, **kw):
        """One line on stderr, exit in exits, every word in it, no crash."""
        r = self.run(*args, **kw)
        what = ' '.join(map(str, args))
        exits = exits if isinstance(exits, tuple) else (exits,)
        check(r.returncode in exits, f'{what}: exit {r.returncode}, wanted {exits}\n{r.stderr[-800:]}')
        lines = [x for x in r.stderr.splitlines() if x.strip()]
        check(len(lines) == 1, f'{what}: {len(lines)} lines on stderr, wanted 1:\n{r.stderr[-800:]}')
        for w in words if isinstance(words, (list, tuple)) else [words]:
            check(str(w) in lines[0], f'{what}: "{w}" is not in: {lines[0]}')
        return lines[0]


def case(folder, seed, preset='tiny', window=128, edit=None):
    """A checkpoint and script by the oracle; edit(config) may change config.json before the tensors are made."""
    if edit:
        keep = dict(make_case.PRE[preset])
        try:
            edit(make_case.PRE[preset])
            make_case.main(folder, seed, preset, window)
        finally:
            make_case.PRE[preset] = keep
    else:
        make_case.main(folder, seed, preset, window)
    return os.path.join(folder, 'script.safetensors')


def golden(folder, script, combine='exact'):
    return oracle.run(folder, script, combine)


def read(path):
    return oracle.st_read(path)


def as_float(entry):
    dtype, a = entry
    return oracle.bf16_f32(a) if dtype == 'BF16' else np.asarray(a, np.float32)


def main(tests):
    """Runs every function of tests with the product; prints a line each; exit 1 when any failed."""
    product, failed = Product(sys.argv[1]), 0
    only = sys.argv[2:]
    for t in tests:
        if only and t.__name__ not in only:
            continue
        try:
            t(product)
            print(f'ok    {t.__name__}', flush=True)
        except Failed as why:
            failed += 1
            print(f'FAIL  {t.__name__}: {why}', flush=True)
    sys.exit(1 if failed else 0)
