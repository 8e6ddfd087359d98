#!/usr/bin/env bash
# Starts a throw-away SLURM of three virtual hosts on this machine and runs jobs/*.sbatch and 'ssmpi submit' in it, by srun and by
# mpirun: they are signalled, requeued, cancelled, and lose a host. Everything hangs below one process and ends with it.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/common.sh
. jobs/common.sh

loud() {
  printf '\n!!! NO SLURM TESTS: %s\n\n' "$*" >&2
}

install_slurm() {  # what is missing, where that cannot start daemons of its own; says loudly why not
  command -v slurmctld >/dev/null && command -v ip >/dev/null && return
  [ "$(id -u)" = 0 ] || { loud "they need root"; return 1; }
  command -v apt-get >/dev/null || { loud "no slurmctld, and no apt-get to install it with"; return 1; }
  [ ! -d /run/systemd/system ] || { loud "no slurmctld; install slurm-wlm and libpmix2 yourself, apt would start its daemons"; return 1; }
  local began=$SECONDS
  if ! { run timeout 60 apt-get update -qq && run env DEBIAN_FRONTEND=noninteractive timeout 120 \
    apt-get install -y -qq --no-install-recommends slurm-wlm libpmix2 iproute2 >/dev/null; }; then
    loud "apt-get did not install slurm-wlm within its time"
    return 1
  fi
  echo "installed SLURM in $((SECONDS - began)) s" >&2
}

case ${1:-} in
  --help|-h)
    echo "usage: bash jobs/test_slurm.sh [--install | pytest arguments]   (root; installs Debian's SLURM if need be)"
    exit 0 ;;
  --install) install_slurm; exit ;;
esac
install_slurm || exit 2 # it has said loudly why
make_environment "${VENV:-.venv-test}" test
find_mpi
run pytest tests/story -rs --durations=5 "$@"
