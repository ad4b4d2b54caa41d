#!/usr/bin/env bash
# Records one run by two arms on a middle-sized synthetic checkpoint (216 MB a tape, a minute or two) and times the whole
# `sparktape diff` of the pair, beside its floors. diff.sh BUILD
set -euo pipefail
build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# The official ratios at a tenth: values of 100 to 700 KB, logits of 1.3 MB.
"$build/sparktape" synth mid --config mid --quiet > /dev/null
python3 - <<'PY'
import json
c = json.load(open("mid/config.json"))
c.update(vocab_size=16384, dim=1024, moe_inter_dim=512, dspark_markov_rank=64, n_heads=16, q_lora_rank=256, o_lora_rank=256,
         o_groups=4, dspark_n_routed_experts=16, dspark_n_activated_experts=4)
json.dump(c, open("config.json", "w"))
PY
"$build/sparktape" synth model --config config.json --quiet > /dev/null
"$build/sparktape" script traffic.safetensors --model model --rounds 40 --slots 4 --quiet > /dev/null
for arm in native-packed mirror64; do
    "$build/sparktape" record model --script traffic.safetensors --arm $arm --level deep -o $arm.tape --quiet > /dev/null
done
"$build/tests/bench/bench_diff" "$build/sparktape" native-packed.tape mirror64.tape
