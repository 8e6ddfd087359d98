#!/usr/bin/env bash
# A job of Criteo Kaggle's size on synthetic rows: how long each step takes on this machine, and how much memory.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/common.sh
. jobs/common.sh

rows=45840617 scale=1 venv=.venv data=data/kaggle_scale runs=runs/kaggle_scale
usage() {
  cat <<TEXT
usage: bash jobs/kaggle_scale.sh [--rows N] [--scale S] [--venv FOLDER] [--data FOLDER] [--run FOLDER] [section.key=value ...]

Generates raw text of Criteo Kaggle's size, prepares it, trains jobs/configs/kaggle.toml in bfloat16 with two trainers of
one thread and an embedding PS, scores the test split, and prints a table of times and memory. About 15 minutes on 2 cores
with 30 GB of disk. Run it again at any time: the data that is there is used again, the model is trained anew.

  --rows N        rows of raw text (default $rows)
  --scale S       distinct tokens as a share of Kaggle's (default $scale)
  --venv FOLDER   virtual environment (default $venv)
  --data FOLDER   raw text and shards (default $data)
  --run FOLDER    run folder (default $runs)
TEXT
}
settings=()
while [ $# -gt 0 ]; do
  case $1 in
    --help|-h) usage; exit 0 ;;
    --rows|--scale|--venv|--data|--run)
      [ $# -ge 2 ] || fail "$1 needs a value; see --help"
      case $1 in --rows) rows=$2 ;; --scale) scale=$2 ;; --venv) venv=$(given "$2") ;; --data) data=$(given "$2") ;; --run) runs=$(given "$2") ;; esac
      shift 2 ;;
    -*) fail "unknown argument '$1'; see --help" ;;
    *=*) settings+=("$1"); shift ;;
    *) fail "unknown argument '$1'; see --help" ;;
  esac
done
case $rows in *[!0-9]*|'') fail "--rows takes a whole number, got '$rows'" ;; esac

table=''
timed() {  # timed STEP COMMAND ...: run it, and add a line to the table
  local step=$1 began=$SECONDS
  shift
  run "$@"
  table+=$(printf '%-10s %6d s' "$step" $((SECONDS - began)))$'\n'
}

make_environment "$venv" tensorboard
find_mpi
raw=$data/raw-$rows shards=$data/shards-$rows
[ -f "$raw/teacher.json" ] || timed generate ssmpi-prepare synthesize "$raw" --rows "$rows" --scale "$scale" --seed 1
[ -f "$shards/manifest.json" ] || timed prepare mpirun -n 2 ssmpi-prepare criteo "$raw/train.txt" --output "$shards" --split kaggle
settings=("data.folder=$shards" "run.folder=$runs" topology.trainers=2 topology.threads=1 topology.embedding_ps=1
  model.precision=bf16 evaluate.final=none "${settings[@]}")
timed train ssmpi launch jobs/configs/kaggle.toml "${settings[@]}" --overwrite
timed score ssmpi evaluate "$runs" --split test

printf '\n%s\npeak memory while training; rows that are mapped count in each rank:\n' "$table"
python -P - "$runs" <<'PYTHON'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1], "usage").glob("*.json")):
    print(f"{path.stem:20} {json.loads(path.read_text())['peak_memory_bytes'] / 1e9:6.2f} GB")
PYTHON
printf '\n'
run ssmpi summary "$runs"
