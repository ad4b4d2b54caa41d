#!/usr/bin/env bash
# The figures of README, each beside its floor. run.sh BUILD [OFFICIAL_MODEL]
#
# Without OFFICIAL_MODEL the block benchmark is left out: it needs a checkpoint of official size
# (sparktape synth FOLDER --config official: 10 GB).
set -euo pipefail
build=$(realpath "$1")
say() { printf '\n== %s\n' "$*"; }

say "linear: multiply-adds and weight bytes per second"
"$build/tests/bench/bench_linear"
say "tape: writing beside LZ4's own speed, reading, opening"
"$build/tests/bench/bench_tape"
say "diff: tensor bytes per second with all metrics"
"$build/tests/bench/bench_diff"
"$(dirname "$0")/diff.sh" "$build"
if [ $# -gt 1 ]; then
    say "block: one official-size draft step"
    "$build/tests/bench/bench_block" "$2"
fi
