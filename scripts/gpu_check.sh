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
python - <<'PYTHON'
import sys

import torch
import triton

if not torch.cuda.is_available():
    sys.exit("gpu_check: torch sees no GPU on this machine")
print(f"torch {torch.__version__}, triton {triton.__version__}, {torch.cuda.get_device_name()}")
PYTHON
tests=0
# Interrupted rather than ended, so that what has failed until then is told.
timeout --signal=INT --kill-after=15 220 python -m pytest -m gpu || tests=$?
timeout 330 python -m scripts.bench.gpu --json "$json"
exit "$tests"
