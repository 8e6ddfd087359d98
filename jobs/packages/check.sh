#!/usr/bin/env bash
# Checks the packages as far as any machine can: the wheel trains in an empty environment with the oldest and with the
# newest versions that pyproject.toml admits, the recipes parse. 16 GB, of which PyTorch for GPUs is most:
# UV_TORCH_BACKEND=cpu saves it where PyTorch's own index can be reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=jobs/common.sh
. jobs/common.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$(python_command)" -m venv "$work/tools"
run "$work/tools/bin/pip" install --quiet --disable-pip-version-check build uv py-rattler-build reframe-hpc cffconvert==2.0.0

smoke() {  # smoke FOLDER: every extra of the wheel, on a few rows, with the commands of the environment that is on PATH
  mpi_environment
  run ssmpi doctor
  run ssmpi-prepare synthesize "$1/raw" --rows 20000 --scale 0.01
  run mpirun -n 2 ssmpi-prepare criteo "$1/raw/train.txt" --output "$1/shards" --split kaggle
  run ssmpi launch jobs/configs/quickstart.toml "data.folder=$1/shards" "run.folder=$1/run" schedule.warmup_examples=300
  run ssmpi export "$1/run" --format onnx
  run ssmpi report "$1/run" --output "$1/report.html"
  run ssmpi-prepare baseline "$1/shards"
}

run "$work/tools/bin/python" -m build --outdir "$work" .
for versions in lowest-direct highest; do
  here=$work/$versions
  run "$work/tools/bin/uv" venv --quiet --python "$(python_command)" "$here"
  run "$work/tools/bin/uv" pip compile --quiet --python "$here" --extra all --extra mpi --resolution "$versions" \
    pyproject.toml --output-file "$here.txt"
  run "$work/tools/bin/uv" pip install --quiet --python "$here" --requirements "$here.txt" "$work"/*.whl
  (export PATH="$here/bin:$PATH" && smoke "$here")
  rm -rf "$here"
done

run "$work/tools/bin/cffconvert" --validate
run "$work/tools/bin/python" -c 'import rattler_build as r; r.Stage0Recipe.from_file("jobs/packages/conda/recipe.yaml").render()'
run "$work/tools/bin/reframe" --prefix "$work" --checkpath jobs/packages/reframe/quickstart_checks.py --list
