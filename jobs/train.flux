#!/usr/bin/env bash
# Train one run:   SITE=jobs/sites/flux.toml flux batch jobs/train.flux RUN.toml --resume RUN_FOLDER [section.key=value ...]
# starts it, or goes on from its last checkpoint: before the time is over it saves, and ends with 85; submit it again.
# 'ssmpi submit RUN.toml --site SITE.toml' writes such a file into the run folder, with the numbers worked out, and
# submits it again as often as needed.
# flux: --job-name=ssmpi-train
# flux: --output=train-{{id.dec}}.log
# flux: --time-limit=24h
# flux: --nodes=4
# flux: --nslots=8
# flux: --cores-per-slot=5
# flux: --exclusive
set -euo pipefail

# What your site needs, for example: module load openmpi; source venv/bin/activate

usage="usage: flux batch jobs/train.flux RUN.toml --resume RUN_FOLDER [section.key=value ...]"
[ $# -gt 0 ] || { echo "$usage" >&2; exit 2; }
command -v ssmpi > /dev/null || { echo "error: no ssmpi on PATH: activate its environment above" >&2; exit 2; }
exec ssmpi launch "$@" --site "${SITE:-jobs/sites/flux.toml}"
