#!/usr/bin/env bash
# Everything CI runs: lint, types, import contracts, shell check, tests. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/common.sh
. jobs/common.sh

case ${1:-} in
  --help|-h)
    echo "usage: bash jobs/test.sh [pytest arguments]   (makes .venv-test, about 8 minutes on 2 cores)"
    exit 0 ;;
esac
trap wait EXIT
bash jobs/test_slurm.sh --install &  # meanwhile; where that cannot be, the tests that need it say loudly that they are left out
make_environment "${VENV:-.venv-test}" test
find_mpi

compiling=()  # meanwhile; else all of pytest's workers compile the same kernels and the same test files
pytest --collect-only -q > /dev/null &
compiling+=($!)
for kernels in train prepare; do
  python tests/compile_kernels.py "$kernels" > /dev/null &
  compiling+=($!)
done
run ruff format --check .
run ruff check .
run mypy
run lint-imports
run shellcheck -x jobs/*.sh jobs/*.sbatch jobs/*.pbs jobs/*.lsf jobs/*.flux jobs/*/*.sh .ci/run
for process in "${compiling[@]}"; do wait "$process"; done
wait
# Four files at a time on two cores, because much of the time tests wait; the longest begin first (tests/conftest.py).
run pytest -rfEs -n 4 --dist loadfile --no-loadscope-reorder "$@"
python jobs/sizes.py
