#!/usr/bin/env bash
# From nothing to a trained and evaluated model: environment, raw text, shards, training under mpirun, result table.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/common.sh
. jobs/common.sh

rows=1200000 venv=.venv data=data/quickstart runs=runs/quickstart
usage() {
  cat <<TEXT
usage: bash jobs/quickstart.sh [--rows N] [--venv FOLDER] [--data FOLDER] [--run FOLDER]

Makes a virtual environment, generates Criteo-format raw text with a known ceiling, prepares it into HDF5 shards,
trains a DLRM with ShadowSync under mpirun and prints its quality beside reference points. About 2 minutes on 2 cores
after the download. Run it again at any time: what is there is used again, the model is trained anew.

  --rows N        rows of raw text to generate (default $rows)
  --venv FOLDER   virtual environment (default $venv)
  --data FOLDER   raw text and shards (default $data)
  --run FOLDER    run folder (default $runs)
TEXT
}
while [ $# -gt 0 ]; do
  case $1 in
    --help|-h) usage; exit 0 ;;
    --rows|--venv|--data|--run)
      [ $# -ge 2 ] || fail "$1 needs a value; see --help"
      case $1 in --rows) rows=$2 ;; --venv) venv=$(given "$2") ;; --data) data=$(given "$2") ;; --run) runs=$(given "$2") ;; esac
      shift 2 ;;
    *) fail "unknown argument '$1'; see --help" ;;
  esac
done
case $rows in *[!0-9]*|'') fail "--rows takes a whole number, got '$rows'" ;; esac

compile_kernels() {  # compile_kernels FOLDER: a few rows through every step
  ssmpi-prepare synthesize "$1/raw" --rows 2000 --scale 0.001
  ssmpi-prepare criteo "$1/raw/train.txt" --output "$1/shards" --split kaggle
  ssmpi launch jobs/configs/quickstart.toml "data.folder=$1/shards" "run.folder=$1/run" topology.trainers=1
}

began=$SECONDS
make_environment "$venv" tensorboard,plots,baseline
find_mpi
ready=$SECONDS

raw=$data/raw-$rows shards=$data/shards-$rows
few=$(mktemp -d)
set -m  # a process group of its own
compile_kernels "$few" > "$few/log" 2>&1 &  # while the rows are made; where it fails, the commands below say why
set +m
trap 'kill -- -$! 2>/dev/null || :; wait; rm -rf "$few"' EXIT  # it may have ended
[ -f "$raw/teacher.json" ] || run ssmpi-prepare synthesize "$raw" --rows "$rows" --seed 1
run mpirun -n 2 ssmpi-prepare criteo "$raw/train.txt" --output "$shards" --split kaggle
run ssmpi-prepare inspect "$shards"
# the learning rates rise over the first rows and fall over the last third
settings=("data.folder=$shards" "run.folder=$runs" "schedule.warmup_examples=$((rows / 60))"
  "schedule.decay_start_examples=$((rows * 4 / 7))" "schedule.decay_examples=$((rows * 2 / 7))")
wait
trap - EXIT
rm -rf "$few"
run ssmpi plan jobs/configs/quickstart.toml "${settings[@]}"
run ssmpi launch jobs/configs/quickstart.toml "${settings[@]}" --overwrite
[ -f "$shards.baseline.json" ] || run ssmpi-prepare baseline "$shards" --output "$shards.baseline.json"

printf '\n'
run ssmpi summary "$runs" --baseline "$shards.baseline.json" --teacher "$raw/teacher.json"
printf '\nrun folder: %s\nplot:       %s\ntook %d s, of which %d s for the environment\n' \
  "$runs" "$runs/plot.png" $((SECONDS - began)) $((ready - began))
