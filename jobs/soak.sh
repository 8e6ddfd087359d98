#!/usr/bin/env bash
# What CI leaves out: hundreds of kills and start-ups, one after the other. Run it before a release.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/common.sh
. jobs/common.sh

usage() {
  cat <<TEXT
usage: bash jobs/soak.sh [--rounds N] [pytest arguments]   (in .venv-test; about 40 minutes on 2 cores)

Runs the tests marked 'soak', which repeat what jobs/test.sh tries a few times or must measure time, those of the
laboratory (tests/lab), and --rounds times (default 3) the tests that kill at random moments, and those of properties with
ten times CI's examples, random ones: the seed is in the printed command, which repeats them. All rounds are run; it
fails if any did.
TEXT
}
rounds=3
case ${1:-} in
  --help|-h) usage; exit 0 ;;
  --rounds) [ $# -ge 2 ] || fail "--rounds needs a value; see --help"; rounds=$2; shift 2 ;;
esac
case $rounds in *[!0-9]*|'') fail "--rounds takes a whole number, got '$rounds'" ;; esac
bash jobs/test_slurm.sh --install || true  # it says loudly which tests are left out then
make_environment "${VENV:-.venv-test}" test
find_mpi

failed=0 ran=0
soak() {
  local code=0
  run pytest -rfE "$@" || code=$?
  case $code in
    0) ran=1 ;;
    5) ;;  # arguments such as -k leave nothing of this to run
    *) ran=1 failed=1 ;;
  esac
}
soak -m soak --timeout 1800 "$@"
soak tests/lab -m "" --timeout 1800 "$@"
for ((round = 1; round <= rounds; round++)); do
  soak tests/mpi -k 'killed or frozen' "$@"
  soak -m hypothesis --timeout 1800 --hypothesis-profile soak --hypothesis-seed $RANDOM$RANDOM "$@"
done
[ $ran = 1 ] || fail "no test was run: $*"
exit $failed
