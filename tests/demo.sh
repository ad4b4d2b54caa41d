#!/usr/bin/env bash
# The road once, on a synthetic checkpoint: record on two ranks, re-execute four ways, compare. demo.sh BINARY [FOLDER]
set -euo pipefail
bin=$(realpath "$1")
folder=${2:-build/demo}
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"
export XDG_CACHE_HOME=$PWD/cache # leaves nothing in the user's cache

step() { printf '\n$ sparktape %s\n' "$*"; "$bin" "$@"; }
# As step, for commands that end with 1 when they find a difference.
compare() { printf '\n$ sparktape %s\n' "$*"; "$bin" "$@" || [ $? = 1 ]; }

echo "1. A checkpoint in the official names and formats (3 stages, MXFP4 experts, FP8 dense), and traffic for it."
step synth model --config tiny --seed 1
step script traffic.safetensors --model model --rounds 12 --slots 4

echo; echo "2. Record the engine on two ranks, every value of every step."
step record model --script traffic.safetensors --arm native-packed --tp 2 --level deep -o packed.tape

echo; echo "3. Re-execute the tape: planned executor, one rank, expanded weights, float64 reference."
compare replay packed.tape model --mode graph -o graph.tape
compare replay packed.tape model --tp 1 -o tp1.tape
compare replay packed.tape model --arm native-expanded -o expanded.tape
compare replay packed.tape model --arm mirror64 --tp 1 -o mirror64.tape

echo; echo "4. One weight byte of stage 1 changes. The replay refuses the other checkpoint, until told; then find where" \
    "it shows first."
cp -r model damaged
at=$("$bin" weights damaged 'mtp.1.attn.wkv.weight' --json)
shard=$(sed -n 's/.*"shard":"\([^"]*\)".*/\1/p' <<<"$at")
offset=$(sed -n 's/.*"offset":\([0-9]*\).*/\1/p' <<<"$at")
code=$(od -An -tu1 -j "$offset" -N1 "damaged/$shard" | tr -d ' ')
printf "\\x$(printf %02x $((code ^ 0x80)))" | dd of="damaged/$shard" bs=1 seek="$offset" conv=notrunc status=none
printf '\n$ sparktape replay packed.tape damaged -o damaged.tape\n'
"$bin" replay packed.tape damaged -o damaged.tape && exit 1 || echo "(exit $?)"
compare replay packed.tape damaged --allow-mismatch checkpoint -o damaged.tape
compare diff packed.tape damaged.tape --forced --model model
echo "Every op ran alone on what the damaged run had as its inputs: the fault shows at the two places where stage 1 uses"
echo "wkv, and nowhere after them."

# One row of the table: name, tape, meaning.
row() {
    local v
    "$bin" diff packed.tape "$2" --json >row.json || [ $? = 1 ]
    v=$(head -n 1 row.json)
    field() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" <<<"$v"; }
    printf '%-32s %9s %13s   %s\n' "$1" "$(field drafts_equal)/$(field drafts)" "$(field equal)/$(field values)" "$3"
}
printf '\n%-32s %9s %13s   %s\n' "packed, 2 ranks, against" "drafts" "values" "what that means"
row "planned executor, 2 ranks" graph.tape "must be the same bits, and is"
row "1 rank" tp1.tape "partial sums are added in another order"
row "weights expanded to bf16" expanded.tape "fp32 sums in another order"
row "mirror64 (float64 sums)" mirror64.tape "the distance to the exact reference"
row "one weight sign flipped" damaged.tape "a fault: its origins are named above"

printf '\nNow look at it:  %s browse %s/packed.tape %s/damaged.tape\n' "$1" "$folder" "$folder"
