"""serve, drive and status as a user runs them: every answer equals the offline recording, whatever clients and disks do.

    drive.py BINARY [ROUNDS]     in the current folder; ROUNDS (default 10000) of the long run
"""
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

BINARY = os.path.abspath(sys.argv[1])
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 10000
ENV = dict(os.environ, XDG_CACHE_HOME=os.path.abspath("cache"))
LONG = 600
SCRIPTS = {"model": "s.safetensors", "shallow": "shallow.safetensors"}  # shallow: one stage, for many rounds


def run(*words, code=0):
    if "-o" in words:  # what an earlier run of the tests left is replaced
        words = (words[0], "--force", *words[1:])
    done = subprocess.run([BINARY, *words], env=ENV, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == code, f"{words}: exit {done.returncode}, wanted {code}\n{done.stdout}{done.stderr}"
    return done


class Worker:
    """A running serve; leaving the block ends it as SIGTERM does, unless it was killed. code: its exit status then."""

    def __init__(self, *words, address="unix:w.sock", env=None, limit=None, code=0, model="model"):
        def bound():
            if limit:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        self.killed, self.code, self.script = False, code, SCRIPTS[model]
        self.process = subprocess.Popen([BINARY, "serve", model, "--listen", address, "--json", *words],
                                        env=dict(ENV, **(env or {})), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, preexec_fn=bound)
        line = self.process.stdout.readline()
        assert line, f"no ready line: {self.process.stderr.read()}"
        self.ready = json.loads(line)
        self.address = self.ready["ready"]

    def status(self, *words):
        return json.loads(run("status", self.address, "--json", *words).stdout)

    def drive(self, *words, code=0):
        return json.loads(run("drive", self.address, "--script", self.script, "--json", *words, code=code).stdout)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        out, error = self.process.communicate(timeout=60)
        if kind is None and not self.killed:
            assert self.process.returncode == self.code, f"serve: exit {self.process.returncode}\n{out}{error}"


def tapes(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def four_clients_many_rounds():
    """No cross-talk: each answer equals the request's own offline recording; nothing is lost; memory stays flat."""
    with Worker(model="shallow") as w:
        first = w.drive("--concurrency", "4", "--check", "shallow.tape")
        repeat = max(1, -(-ROUNDS // first["rounds"]))
        w.drive("--concurrency", "4", "--check", "shallow.tape", "--repeat", str(max(1, repeat // 10)))
        early = w.status()["memory"]["resident_bytes"]
        n = w.drive("--concurrency", "4", "--check", "shallow.tape", "--repeat", str(repeat))
        late = w.status()
        assert n["mismatches"] == 0 and n["checked"] == n["drafts"] == first["drafts"] * repeat, n
        assert n["rounds"] >= ROUNDS and n["faults"] == {}, n
        grown = late["memory"]["resident_bytes"] - early
        assert grown < 4 << 20, f"resident memory grew by {grown} bytes in {n['rounds']} rounds"
        assert late["slots_unreserved"] == 4 and late["state"] == "serving" and late["queued"] == 0, late
        assert not any(late["counts"]["refused"].values()), late["counts"]["refused"]


def a_tape_drives_as_its_script_does():
    with Worker() as w:
        n = json.loads(run("drive", w.address, "--tape", "ref.tape", "--check", "ref.tape", "--json", "--rate",
                           "500").stdout)
        assert n["mismatches"] == 0 and n["checked"] == n["drafts"] > 0, n


def faults_are_answered_as_written():
    with Worker() as w:
        n = w.drive("--concurrency", "4", "--check", "ref.tape", "--repeat", "4", "--faults", "all:0.03@5")
        assert n["mismatches"] == 0 and n["checked"] == n["drafts"], n
        assert set(n["faults"]) == {"drop", "delay", "reorder", "truncate", "wrong-epoch", "wrong-slot", "half-open"}, n
        assert w.status()["counts"]["refused"]["poisoned"] == n["refused"]["poisoned"], n


def a_wrong_answer_is_noticed():
    """The check itself: another checkpoint's recording does not pass, and says where."""
    with Worker() as w:
        n = w.drive("--check", "other.tape", code=1)
        assert n["mismatches"] > 0 and n["first_mismatch"].startswith("round "), n


def tcp_and_tls():
    for name, digits in (("key", "0123456789abcdef"), ("wrong", "fedcba9876543210")):
        with open(name, "w", encoding="ascii") as f:
            f.write(digits * 4 + "\n")
        os.chmod(name, 0o600)
    with Worker(address="tcp:127.0.0.1:0") as w:
        assert w.drive("--check", "ref.tape")["mismatches"] == 0
    with Worker("--tls-key", "key", address="tcp:127.0.0.1:0") as w:
        assert w.drive("--check", "ref.tape", "--tls-key", "key", "--concurrency", "2")["mismatches"] == 0
        for words in (["--tls-key", "wrong"], []):
            run("drive", w.address, "--script", "s.safetensors", "--timeout", "5", *words, code=5)
        assert w.status("--tls-key", "key")["state"] == "serving"
    error = run("serve", "model", "--listen", "tcp:0.0.0.0:0", code=2).stderr
    assert "--tls-key" in error, error


def refusals_name_the_reason():
    run("record", "model", "--script", "s.safetensors", "--level", "io", "--rounds", "3-", "-o", "late.tape", "--quiet")
    with Worker() as w:
        error = run("drive", w.address, "--script", "s.safetensors", "--check", "late.tape", code=3).stderr
        assert "late.tape: found no round 0, the first of 3" in error, error
    with Worker("--slots", "2", "--positions", "64") as w:
        for words, wanted in ((["--checkpoint", "0" * 64], "identity"), (["--arm", "mirror"], "arm"),
                              (["--concurrency", "4"], "limit"), (["--positions", "1000"], "limit")):
            done = run("drive", w.address, "--script", "s.safetensors", *words, code=4)
            assert wanted in done.stderr, (words, done.stderr)
    with Worker(env={"DSPARK_WORKER_ARM": "native-hybrid"}) as w:
        assert w.ready["arm"] == "native-hybrid"
    error = run("serve", "model", "--arm", "k2-tp2", code=4).stderr
    assert "k2-tp2" in error, error


def dumps_equal_the_graph_and_survive():
    os.mkdir("dumps")
    env = {"DSPARK_V1_DUMP_DIR": "dumps", "DSPARK_V1_ROUNDS": "every:5"}
    with Worker(env=env) as w:
        w.drive("--concurrency", "4", "--check", "ref.tape", "--repeat", "2")
        state = w.status()
        dump = state["dump"]
        assert dump["checked"] >= 10 and dump["mismatches"] == 0 and dump["failed"] == "", dump
        assert dump["checked"] + dump["dropped"] + dump["unchecked"] >= state["counts"]["rounds"] // 5, dump
    for tape in tapes("dumps"):
        run("doctor", tape)
        assert json.loads(run("info", tape, "--json").stdout), tape
    with Worker("--dump-dir", "dumps", "--dump-rounds", "0-", "--dump-size", "1") as w:
        w.drive("--repeat", "3")
    assert len(tapes("dumps")) > 2, tapes("dumps")
    with Worker("--dump-dir", "dumps", "--dump-rounds", "0-") as w:
        w.drive()
        w.killed = True
        w.process.kill()
    part = [name for name in tapes("dumps") if name.endswith(".part")]
    assert len(part) == 1, tapes("dumps")
    run("recover", part[0], "-o", "saved.tape", code=1)
    run("doctor", "saved.tape")


def a_disk_that_fails_stops_the_dump_only():
    os.mkdir("small")
    with Worker("--dump-dir", "small", "--dump-rounds", "0-", limit=300000, code=5) as w:
        assert w.drive("--check", "ref.tape", "--repeat", "2")["mismatches"] == 0
        dump = w.status()["dump"]
        assert dump["failed"] and dump["dropped"] > 0, dump
        assert w.status()["state"] == "serving"
    os.mkdir("gone")
    with Worker("--dump-dir", "gone", "--dump-rounds", "0-", "--dump-size", "1", code=5) as w:
        w.drive()
        shutil.rmtree("gone")
        assert w.drive("--check", "ref.tape", "--repeat", "3")["mismatches"] == 0
        assert w.status()["state"] == "serving"
    error = run("serve", "model", "--dump-dir", "gone", "--dump-rounds", "0-", code=3).stderr
    assert "gone" in error, error


def capture_is_proved():
    """record --prove, on both executors, and a tape stored on another one."""
    run("script", "short.safetensors", "--model", "model", "--rounds", "6", "--slots", "2", "--quiet")
    for mode in ("eager", "graph"):
        proof = json.loads(run("record", "model", "--script", "short.safetensors", "--mode", mode, "--tp", "2", "--prove",
                               "--json").stdout)
        assert proof["verdict"] == "PASS" and proof["taps"] > 20, proof
    run("record", "model", "--script", "s.safetensors", "--level", "deep", "-o", "deep.tape", "--quiet")
    run("record", "model", "--script", "s.safetensors", "--level", "deep", "--arm", "native-expanded", "-o", "on.tape",
        "--base", "deep.tape", "--quiet")
    run("record", "model", "--script", "s.safetensors", "--level", "deep", "--arm", "native-expanded", "-o", "alone.tape",
        "--quiet")
    run("diff", "on.tape", "alone.tape")
    assert os.path.getsize("on.tape") < os.path.getsize("alone.tape") / 2


def start_over():
    for name in os.listdir("."):
        if os.path.isdir(name):
            shutil.rmtree(name)
        else:
            os.remove(name)
    run("synth", "model", "--config", "tiny", "--seed", "3", "--quiet")
    run("synth", "model2", "--config", "tiny", "--seed", "4", "--quiet")
    with open("model/config.json", encoding="utf-8") as f:
        shallow = dict(json.load(f), n_mtp_layers=1)
    with open("shallow.json", "w", encoding="utf-8") as f:
        json.dump(shallow, f)
    run("synth", "shallow", "--config", "shallow.json", "--seed", "3", "--quiet")
    for model, tape in (("model", "ref.tape"), ("shallow", "shallow.tape")):
        run("script", SCRIPTS[model], "--model", model, "--rounds", "40", "--slots", "4", "--seed", "9", "--quiet")
        run("record", model, "--script", SCRIPTS[model], "--mode", "graph", "--level", "io", "-o", tape, "--quiet")
    run("record", "model2", "--script", "s.safetensors", "--level", "io", "-o", "other.tape", "--quiet")


start_over()
for test in (four_clients_many_rounds, a_tape_drives_as_its_script_does, faults_are_answered_as_written,
             a_wrong_answer_is_noticed, tcp_and_tls, refusals_name_the_reason, dumps_equal_the_graph_and_survive,
             a_disk_that_fails_stops_the_dump_only, capture_is_proved):
    began = time.time()
    test()
    print(f"ok {test.__name__} {time.time() - began:.1f} s", flush=True)
