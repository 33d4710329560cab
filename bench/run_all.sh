#!/usr/bin/env bash
# Everything that is recorded on a GPU, in one go of most of an hour on an H200: the correctness protocol, the replay
# tables, a bundle, the times and the profile. Results land in one folder; copy what is wanted into bench/results,
# search/tables and cupygemm/bundles (h200.yaml), then run `cupygemm train -o search/policies/policy.npz`,
# `python -m bench.ship_forecast bench/results/survey.jsonl -o cupygemm/bundles/h200_forecast.npz` and `cupygemm report`.
# bench/compare.py, bench/ablations.py and bench/transfer.py, which need no GPU, make the comparison of strategies, of the
# parts of one, and of what carries over.
#
#   CUPYGEMM_COMMIT=$(git rev-parse --short HEAD) PYTHON=.venv-gpu/bin/python bench/run_all.sh build/results
#
# A step that fails does not stop the next: each file says by itself what it is of.
set -u
cd "$(dirname "$0")/.."
out=${1:?folder for the results}
python=${PYTHON:-python3}
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}. PYTHONUNBUFFERED=1 CUPYGEMM_REQUIRE_GPU=1
mkdir -p "$out"
step() { echo "== $(date +%T) $*"; }

step correctness
timeout 660 "$python" -m bench.correctness --limit 600 -o "$out/correctness.json"

step fuzz
timeout 540 "$python" -m bench.fuzz -o "$out/fuzz.json"

step tables
# Of the sub-spaces of small and of large products.
small="512x512x512 1024x1024x1024 256x1024x1024 1024x1024x4096 64x64x4096 128x256x4096 256x256x16384 512x512x8192"
skinny="16x4096x4096 128x4096x4096 1x4096x14336 16384x64x16384"
large="2048x2048x4096 4096x4096x1024 4096x4096x4096 8192x8192x512"
timeout 1200 "$python" -m cupygemm record $small $skinny --subspace small -o "$out/tables" --report "$out/tuning_rate.json"
timeout 1200 "$python" -m cupygemm record $large -o "$out/tables"

step ladder
large_suites="headline squares short_k ragged layouts"
small_suites="small splitk skinny"
timeout 200 "$python" -m bench.ladder $large_suites --bundle "$out/tuned.yaml" -o "$out/ladder.json"
timeout 120 "$python" -m bench.ladder $small_suites --bundle "$out/tuned.yaml" -o "$out/ladder_small.json"
timeout 240 "$python" -m bench.ladder batched fused --bundle "$out/tuned.yaml" -o "$out/ladder_variants.json"
timeout 60 "$python" -m bench.ladder small splitk --dependent -o "$out/ladder_dependent.json"
timeout 600 "$python" -m bench.grid --survey bench/results/survey.jsonl --bundle "$out/tuned.yaml" -o "$out/grid_sample.json"
# The survey that is recorded: that of this run comes later.
timeout 120 "$python" -m bench.grid tokens --survey bench/results/survey.jsonl --generations 3 --bundle "$out/tuned.yaml" \
    -o "$out/tokens.json"
timeout 500 "$python" -m bench.grid $small_suites $large_suites --survey bench/results/survey.jsonl \
    --start "$out/tuned.yaml" --generations 4 --bundle "$out/tuned.yaml" -o "$out/climbed.json"
timeout 200 "$python" -m bench.ladder headline squares --only 2048x2048x4096 --only 4096x4096x4096 \
    --only 8192x8192x8192 --dtype float16 --sustained -o "$out/ladder_sustained.json"

step bundle
for shape in $small $skinny $large; do
    "$python" -m cupygemm tune "$shape" --device replay --strategy exhaustive --tables "$out/tables" -o "$out/tuned.yaml"
done
timeout 90 "$python" -m cupygemm tune 2048x2048x4096 --dtype bfloat16 --tables "$out/tables" -o "$out/tuned.yaml"
for shape in 2048x2048x4096 4096x4096x4096; do
    for layout in nt tn tt; do
        timeout 90 "$python" -m cupygemm tune "$shape" --layout "$layout" --tables "$out/tables" -o "$out/tuned.yaml"
    done
done

# Of the tables of the package: those of this run come later.
timeout 120 "$python" -m bench.best_known --start "$out/tuned.yaml" --bundle "$out/tuned.yaml" -o "$out/best_known.json"

"$python" -m bench.ship "$out/tuned.yaml" -o "$out/h200.yaml"

step times
for suite in headline squares; do
    timeout 240 "$python" -m cupygemm bench "$suite" --bundle "$out/tuned.yaml" -o "$out/$suite.json" \
        --mode rotated --mode resident --mode sustained
done
for suite in short_k ragged layouts batched fused $small_suites; do
    timeout 240 "$python" -m cupygemm bench "$suite" --bundle "$out/tuned.yaml" -o "$out/$suite.json"
done
timeout 120 "$python" -m bench.layouts 2048x2048x4096 4096x4096x4096 --bundle "$out/tuned.yaml" -o "$out/layout_ratios.json"

timeout 60 "$python" -m bench.host -o "$out/host.json"
timeout 60 "$python" -m bench.stacks -o "$out/stacks.json"
timeout 120 "$python" -m bench.packing -o "$out/packing.json"

step found
timeout 260 "$python" -m bench.found 2048x2048x4096 -o "$out/found.json"

step unseen
timeout 620 "$python" -m bench.survey --seconds 560 -o "$out/survey.jsonl"
timeout 300 "$python" -m bench.unseen -o "$out/unseen.json"

step profile
timeout 90 "$python" -m bench.timeline 2048x2048x4096 4096x4096x1024 8192x16384x256 --bundle "$out/tuned.yaml" \
    -o "$out/timeline.json"
timeout 90 "$python" -m bench.profiling 2048x2048x4096 --bundle "$out/tuned.yaml" -o "$out/profile.json"

step sanitizer
timeout 500 "$python" -m bench.sanitizer --limit 150 -o "$out/sanitizer.json"
rm -f "$out"/.*.lock
