#!/usr/bin/env bash
# Is a codec on pushes better than dense pushes when both are tuned alike, on a million rows, and why? compression.sh
# found so on a tenth of the rows, with a rate that had been chosen for dense alone. The data, 1,028,572 rows to train on:
#
#   ssmpi-prepare synthesize data/codecs/raw --rows 1200000 --seed 1
#   mpirun -n 2 ssmpi-prepare criteo data/codecs/raw/train.txt --output data/codecs/shards --split kaggle
#
# Decided before the first run that is reported:
# * Four trainers in lockstep, async_ps, gap 2, staleness 1, as in compression.sh; schedule and model of base.toml.
# * 'codecs_tuned.sh tune' runs the same grid of dense.rate and embedding.rate for dense and for threshold:0.99, seed
#   1001, on the validation split; the lowest NE of each wins. Where it lies at the end of the grid, the grid of both
#   grows by a value there, once. The winners are written into this file before anything is reported. Four by four
#   settings and three seeds had been decided first: 96 runs of 12 CPU seconds, where the machine leaves both studies
#   together a third of a core. What was left out, dense.rate 0.8 and embedding.rate 0.04, is where the grid grows.
# * 'codecs_tuned.sh report' scores the test split, seeds 1 to 20, or as many as are complete in all cases of a table
#   when time ends; differences by pairs of seeds with standard errors, none left out:
#     tuned    dense and 0.99, each at its own settings
#     fit      these runs, scored on the rows that they trained on too: a regularizer would come out worse there
#     shipped  dense and 0.99 at compression.sh's rate of 0.2, and 0.99 with a life span of 1000 pushes; a trainer
#              pushes 1,004 times here
#     warm-up  dense and 0.99 with a warm-up of 50,000 examples, at the settings tuned without: does a codec, which sends
#              little at first, do what a warm-up does?
#     swapped  each at the other's settings, where they differ
#   Order: tuned, seeds 1 to 8; shipped, warm-up and swapped, seeds 1 to 4; then seeds 9 to 20 and 5 to 20.
# * The training loss is the mean over the last quarter of a run, of rows that the model has not seen yet.
set -euo pipefail
cd "$(dirname "$0")/../.."

what=$1 data=${2:-data/codecs/shards} out=${3:-runs/studies/codecs_tuned}
mkdir -p "$out"
study() { # NAME SPLIT ARGUMENTS...: one table
  local name=$1 split=$2
  shift 2
  ssmpi bench lockstep jobs/studies/base.toml data.folder="$data" run.folder="$out/$name" topology.trainers=4 \
    topology.sync_ps=1 sync.algorithm=async_ps sync.life_span=100 evaluate.final="$split" --gap 2 --staleness 1 \
    --out "$out/$name.json" "$@" | tee "$out/$name.txt"
}
codec=sync.codec=threshold:0.99
grid() { # NAME CODEC: all settings of one arm
  local rates
  for rates in {0.1,0.2,0.4}/{0.08,0.15,0.3}; do
    study "tune-$1-${rates/\//-}" validation "$2" dense.rate="${rates%/*}" embedding.rate="${rates#*/}" --seed 1001
  done
}
case $what in
  tune)
    grid dense sync.codec=dense
    grid codec $codec
    ;;
esac
