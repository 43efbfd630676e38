#!/usr/bin/env bash
# Checks everything that needs a GPU, on a machine that has one, in less than ten minutes.
#
#     scripts/gpu_check.sh [further arguments of pytest]
#
# Tests that need no GPU run everywhere, by `python -m pytest`.
set -euo pipefail
cd "$(dirname "$0")/.."
unset TRITON_INTERPRET
python - <<'PYTHON'
import sys

import torch
import triton

if not torch.cuda.is_available():
    sys.exit("gpu_check: torch sees no GPU on this machine")
print(f"torch {torch.__version__}, triton {triton.__version__}, {torch.cuda.get_device_name()}")
PYTHON
exec timeout 600 python -m pytest -m gpu "$@"
