#!/usr/bin/env bash
# What losses of embedding PSs take by strategy, where access to rows is skewed (Zipf 1.05) and where it is nearly even
# (Zipf 0.6). All 26 tables are of one size, because what is saved whole hides how rows are selected: of Criteo's lookups
# 20 of 26 are of tables that each priority save takes whole, so that even a selection at random would lose no more than
# 20/26 x 1/8 + 6/26 x 7.5/4 = 0.53 of what saving all rows does. A row is looked up ten times in a T_save.
#
# Shares of the updates that CPR-vanilla loses, as found. The longer a job is in T_save, the older do rows get that are
# not selected, so that each share grows with it:
#
#   Zipf 1.05, 16 T_save a job, seed 1              MFU 0.30, SCAR 0.39, SSU 0.42
#   Zipf 1.05, 20 T_save a job, 3,000 rows, seed 1  MFU 0.42, SCAR 0.54, SSU 0.58
#   Zipf 0.6, 16 T_save a job, 4,000 rows           MFU 0.64, SCAR 1.02 (seed 1), SSU 0.99 (seeds 1, 2)
#   Zipf 0.6, 20 T_save a job, seeds 1, 2, 3        SSU 1.36, 1.08, 1.51: worse than saving all rows
#
# Saves are many and small: with OUT in a memory file system each run takes some 10 s, else up to a minute.
set -euo pipefail
cd "$(dirname "$0")/../.."

data=${1:-data/recovery} out=${2:-runs/studies/recovery}
study() { # SKEW ROWS_OF_A_TABLE SEEDS INPUTS...: one table
  local skew=$1 rows=$2 seeds=$3 name=$1-$2 sizes
  shift 3
  if [ ! -e "$data/$name/shards/manifest.json" ]; then
    sizes=$(for _ in {1..26}; do printf '%s,' "$rows"; done)
    ssmpi-prepare synthesize "$data/$name/raw" --rows 750000 --seed 1 --skew "$skew" --cardinalities "${sizes%,}" --overwrite
    ssmpi-prepare criteo "$data/$name/raw/train.txt" --output "$data/$name/shards" --split kaggle
  fi
  python -m jobs.lab recovery --folder "$out/$name" --seeds "$seeds" "$@" data.folder="$data/$name/shards" \
    topology.embedding_ps=72 data.batch_size=512 embedding.optimizer=rowwise_adagrad embedding.rate=0.15 \
    'model.bottom=[16]' 'model.top=[16,1]'
}
study 1.05 4000 1 --only CPR --mtbf-hours 1.4 --target-pls 0.01736
study 0.6 3000 1,2,3 --only 'CPR-[vS][aS]' --mtbf-hours 2.8 --target-pls 0.007
