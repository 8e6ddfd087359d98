#!/usr/bin/env bash
# What codecs do to quality and to bytes, by pairs of seeds: four trainers in lockstep, where time is given. The rate is
# the best for dense pushes on the validation split, of 0.4, 0.2, 0.1, 0.05 and 0.025; nothing else was chosen. The data:
#
#   ssmpi-prepare synthesize data/compression/raw --rows 120000 --seed 1
#   mpirun -n 2 ssmpi-prepare criteo data/compression/raw/train.txt --output data/compression/shards --split kaggle
set -euo pipefail
cd "$(dirname "$0")/../.."

data=${1:-data/compression/shards} seeds=${2:-10} out=${3:-runs/studies/compression}
mkdir -p "$out"
study() { # NAME ARGUMENTS...: one table
  local name=$1
  shift
  python -m jobs.lab lockstep jobs/studies/base.toml data.folder="$data" run.folder="$out/$name" topology.trainers=4 \
    dense.rate=0.2 schedule.decay_start_examples=50_000 schedule.decay_examples=60_000 \
    --runs "$seeds" --output "$out/$name.json" "$@" | tee "$out/$name.txt"
}
t=sync.codec=threshold
study pushes sync.algorithm=async_ps topology.sync_ps=1 sync.threshold_interval=100 --gap 2 --staleness 1 \
  --case sync.codec=bf16 --case $t:0.9 --case $t:0.98 --case $t:0.99 --case $t:0.99:bf16 --case $t:0.995 \
  --case $t:0.999 --case "$t:0.99 sync.threshold_interval=1" --case "$t:0.99 sync.threshold_interval=1000" \
  --case $t:0.99:whole \
  --case "$t:0.99 feedback=off" --case sync.codec=random-k:0.99 --case "sync.codec=random-k:0.99 feedback=off"
# Rounds by mirrors, both ways: at the gap of dense rounds, and at a smaller one that takes no more bytes.
study easgd sync.algorithm=easgd topology.sync_ps=1 sync.threshold_interval=100 --gap 4 --staleness 1 \
  --case gap=1 --case sync.codec=bf16 --case $t:0.9 --case $t:0.98 --case $t:0.98:bf16 --case $t:0.99 \
  --case "$t:0.98 gap=1" --case "$t:0.99 gap=1" --case sync.codec=random-k:0.98
