#!/usr/bin/env bash
# What losses of embedding PSs take by strategy, where access to rows is skewed (Zipf 1.05) and where it is nearly even
# (Zipf 0.6). All 26 tables are of one size, because what is saved whole hides how rows are selected: of Criteo's lookups
# 20 of 26 are of tables that each priority save takes whole, so that even a selection at random would lose no more than
# 20/26 x 1/8 + 6/26 x 7.5/4 = 0.53 of what saving all rows does. Here a T_save is a sixteenth of the job, in which a row
# is looked up ten times. Saves are many and small: a memory file system as OUT makes this some minutes shorter.
# With seed 1, shares of the updates that CPR-vanilla loses: MFU 0.30, SCAR 0.39, SSU 0.42 under Zipf 1.05; MFU 0.64,
# SCAR 1.02, SSU 1.04, which is worse, under Zipf 0.6.
set -euo pipefail
cd "$(dirname "$0")/../.."

seeds=${1:-1} data=${2:-data/recovery} out=${3:-runs/studies/recovery}
sizes=$(printf '4000,%.0s' {1..26})
for skew in 1.05 0.6; do
  if [ ! -e "$data/$skew/shards/manifest.json" ]; then
    ssmpi-prepare synthesize "$data/$skew/raw" --rows 750000 --seed 1 --skew $skew --cardinalities "${sizes%,}" --overwrite
    ssmpi-prepare criteo "$data/$skew/raw/train.txt" --output "$data/$skew/shards" --split kaggle
  fi
  ssmpi bench recovery --folder "$out/$skew" --seeds "$seeds" --only CPR --mtbf-hours 1.4 --target-pls 0.01736 \
    data.folder="$data/$skew/shards" topology.embedding_ps=72 data.batch_size=512 \
    embedding.optimizer=rowwise_adagrad embedding.rate=0.15 'model.bottom=[16]' 'model.top=[16,1]'
done
