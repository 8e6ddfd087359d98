#!/usr/bin/env bash
# How algorithms scale where networks are full: builds virtual hosts whose links the kernel limits, runs 'python -m jobs.lab cluster' over
# them and removes them. Everything hangs below one process and ends with it.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=jobs/common.sh
. jobs/common.sh

case ${1:-} in
  --help|-h)
    echo "usage: bash jobs/lab/cluster_on_hosts.sh [arguments of 'python -m jobs.lab cluster']   (root on Linux, with iproute2)"
    exit 0 ;;
esac
make_environment "${VENV:-.venv}" tensorboard,plots,baseline  # as quickstart.sh does
find_mpi
run python -m jobs.lab cluster --virtual-hosts "$@"
