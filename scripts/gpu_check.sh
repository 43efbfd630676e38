#!/usr/bin/env bash
# Checks and measures everything that needs a GPU, on a machine that has one, in under ten minutes.
#
#     scripts/gpu_check.sh [FOLDER]
#
# First `gnntrain doctor --gpu` tries the kernels, then the tests that need a GPU run, then the
# benchmark; each goes on where another one fails. What came of them lies in FOLDER (default:
# gpu-check-<date>), and the last line says what to send. It needs what `pip install -e '.[test]'`
# installs, and no network. Tests that need no GPU run everywhere, by `python -m pytest`.
#
# Where WholeGraph is installed it is measured too; where it is not, that is told. It takes five wheels,
# 57 MB (with what it names as its needs pip would fetch more, which is not used or comes with torch):
#
#     pip install --no-deps pylibwholegraph-cu13==26.10.0 libwholegraph-cu13==26.10.0 \
#         libraft-cu13==26.10.0 librmm-cu13==26.10.0 rapids-logger==0.3.0
set -euo pipefail
folder=$(realpath -m "${1:-gpu-check-$(date +%F-%H%M)}")
cd "$(dirname "$0")/.."
unset TRITON_INTERPRET
mkdir -p "$folder"
python3 - <<'PYTHON'
import sys
from importlib.util import find_spec

import torch

if not torch.cuda.is_available():
    sys.exit("gpu_check: torch sees no GPU on this machine that runs CUDA or ROCm")
missing = [name for name in ("hypothesis", "pytest", "triton") if find_spec(name) is None]
if missing:
    sys.exit(f"gpu_check: not installed: {', '.join(missing)}; pip install -e '.[test]'")
print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
PYTHON
failed=()

# Runs a step of at most so many seconds; what it prints goes to FOLDER/NAME.txt as well.
step() { # NAME SECONDS COMMAND...
    local name=$1 seconds=$2 status=0
    shift 2
    printf '\n== %s\n' "$name"
    timeout --signal=INT --kill-after=15 "$seconds" "$@" 2>&1 | tee "$folder/$name.txt" || status=$?
    if ((status)); then
        failed+=("$name")
        printf '== %s: exit code %d\n' "$name" "$status" | tee -a "$folder/$name.txt"
    fi
}

step doctor 60 python3 -m gnntrain doctor
step self-check 240 python3 -m gnntrain doctor --gpu
# The graphs are built while the tests run: that needs cores, but no GPU.
timeout 240 python3 -m scripts.bench.gpu --prepare >"$folder/graphs.txt" 2>&1 &
graphs=$!
trap 'kill "$graphs" 2>/dev/null || true' EXIT
# Only the files with such tests: others import what a machine with a GPU need not have.
mapfile -t files < <(grep -rlE 'NEEDS_GPU|on_each_device|each_registration|on_gpu_kernels|mark\.gpu' tests --include='test_*.py')
several=()
python3 -c 'import xdist' 2>/dev/null && several=(-n 6)
# Each test is told as it ends, and one that hangs is ended, with the stacks of its threads. At the
# time limit pytest is interrupted rather than ended, so that what has failed until then is told.
OMP_NUM_THREADS=2 step tests $((340 - SECONDS > 60 ? 340 - SECONDS : 60)) \
    python3 -m pytest -m gpu --hypothesis-profile=thorough -vv --tb=short "${several[@]}" \
    -o faulthandler_timeout=80 -o faulthandler_exit_on_timeout=true "${files[@]}"
wait "$graphs" || failed+=(graphs)
step benchmark $((575 - SECONDS > 60 ? 575 - SECONDS : 60)) \
    python3 -m scripts.bench.gpu --json "$folder/benchmark.json"
tar -czf "$folder.tar.gz" -C "$(dirname "$folder")" "$(basename "$folder")"
if ((${#failed[@]})); then
    printf '\ngpu_check: failed: %s\n' "${failed[*]}"
else
    printf '\ngpu_check: all is well\n'
fi
echo "Please send $folder.tar.gz (the output of each step, and the figures)."
exit "$((${#failed[@]} > 0))"
