#!/usr/bin/env bash
# What sending only the strongest activations does to quality, by pairs of seeds: DLRM of the paper's sizes, behind
# bottom.2 (256 wide) and behind top.2 (256 wide), too. Nothing was chosen by these runs: the rate and the schedule are
# those of compression.sh. The data are its data:
#
#   ssmpi-prepare synthesize data/compression/raw --rows 120000 --seed 1
#   mpirun -n 2 ssmpi-prepare criteo data/compression/raw/train.txt --output data/compression/shards --split kaggle
#
# A table at a time: TABLES="shares controls" bash jobs/studies/top_k.sh. Runs that are in the JSON files already are
# not repeated.
set -euo pipefail
cd "$(dirname "$0")/../.."

data=${1:-data/compression/shards} seeds=${2:-10} out=${3:-runs/studies/top_k}
tables=${TABLES:-shares controls thresholds hybrid}
mkdir -p "$out"
study() { # NAME ARGUMENTS...: one table
  local name=$1
  shift
  [[ " $tables " == *" $name "* ]] || return 0
  python -m jobs.lab lockstep jobs/studies/base.toml data.folder="$data" run.folder="$out/$name" \
    'model.bottom=[512,256,64,16]' 'model.top=[512,256,128,1]' dense.rate=0.2 \
    schedule.decay_start_examples=50_000 schedule.decay_examples=60_000 \
    --runs "$seeds" --output "$out/$name.json" "$@" | tee "$out/$name.txt"
}
once() { echo "model.top_k=[\"bottom.2:$1\"]"; }
twice() { echo "model.top_k=[\"bottom.2:$1\",\"top.2:$1\"]"; }
# (a) shares, once and twice
study shares sync.algorithm=none \
  --case "$(once 0.75)" --case "$(once 0.9)" --case "$(once 0.95)" --case "$(once 0.98)" \
  --case "$(twice 0.75)" --case "$(twice 0.9)" --case "$(twice 0.95)" --case "$(twice 0.98)"
# (b) controls that send as much, behind bottom.2
c=model.name=top_k_controls.py
study controls sync.algorithm=none --case "$(once 0.95)" --case "$c:own_gradient_95" --case "$c:random_95" \
  --case "$(once 0.9)" --case "$c:own_gradient_90" --case "$c:random_90"
# (d) by thresholds
study thresholds sync.algorithm=none "$(once 0.95)" --case "$(once '0.95 laplace')"
# (c) both halves of DCT: four trainers, gradients above a threshold, and the strongest activations
g=sync.codec=threshold:0.99
study hybrid sync.algorithm=async_ps topology.trainers=4 topology.sync_ps=1 sync.threshold_interval=100 --gap 2 --staleness 1 \
  --case "$(once 0.9)" --case "$(once 0.95)" --case "$g" --case "$g $(once 0.9)" --case "$g $(once 0.95)"
