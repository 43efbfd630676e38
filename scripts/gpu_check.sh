#!/usr/bin/env bash
# Checks and measures everything that needs a GPU, on a machine that has one, in under ten minutes.
#
#     scripts/gpu_check.sh [FILE.json]
#
# The figures, the device and the versions go to FILE.json (default: docs/benchmarks/<date>-gpu.json).
# Tests that need no GPU run everywhere, by `python -m pytest`.
#
# Where WholeGraph is installed it is measured too; where it is not, that is told. It takes five wheels,
# 57 MB (with what it names as its needs pip would fetch more, which is not used or comes with torch):
#
#     pip install --no-deps pylibwholegraph-cu13==26.10.0 libwholegraph-cu13==26.10.0 \
#         libraft-cu13==26.10.0 librmm-cu13==26.10.0 rapids-logger==0.3.0
set -euo pipefail
cd "$(dirname "$0")/.."
unset TRITON_INTERPRET
json=${1:-docs/benchmarks/$(date +%F)-gpu.json}
python3 - <<'PYTHON'
import sys

import torch
import triton

if not torch.cuda.is_available():
    sys.exit("gpu_check: torch sees no GPU on this machine")
# What is missing is told at once.
import hypothesis
import pytest

import scripts.bench.gpu

print(f"torch {torch.__version__}, triton {triton.__version__}, {torch.cuda.get_device_name()}")
PYTHON
# The graphs are built while the tests run: that needs cores, but no GPU.
timeout 240 python3 -m scripts.bench.gpu --prepare &
graphs=$!
trap 'kill "$graphs" 2>/dev/null || true' EXIT
# Only the files with such tests: others import what a machine with a GPU need not have.
mapfile -t files < <(grep -rlE 'NEEDS_GPU|on_each_device|each_registration|on_gpu_kernels|mark\.gpu' tests --include='test_*.py')
several=()
python3 -c 'import xdist' 2>/dev/null && several=(-n 6)
# Each test is told as it ends, and one that hangs is ended, with the stacks of its threads. At the
# time limit pytest is interrupted rather than ended, so that what has failed until then is told.
tests=0
OMP_NUM_THREADS=2 timeout --signal=INT --kill-after=15 200 \
    python3 -m pytest -m gpu --hypothesis-profile=thorough -vv --tb=short "${several[@]}" \
    -o faulthandler_timeout=80 -o faulthandler_exit_on_timeout=true "${files[@]}" || tests=$?
wait "$graphs" || true
timeout --kill-after=5 $((560 - SECONDS)) python3 -m scripts.bench.gpu --json "$json"
exit "$tests"
