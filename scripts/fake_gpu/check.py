"""Whole runs on a fake GPU, compared with the same runs on the CPU.

    python -m scripts.fake_gpu.check [WORD ...]

For each case: train, evaluate, predict; for one, resume. Losses and metrics must be those of the
CPU with torch's operators, and no training step may wait for the GPU. Words choose the cases whose
names contain one of them. All cases take about ten minutes on two cores.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from scripts.fake_gpu.__main__ import environment

_GRAPH = ["dataset=synthetic", "dataset.num_nodes=100", "dataset.avg_degree=6"]
_SMALL = [
    *_GRAPH,
    "dataset.num_features=12",
    "model.hidden_channels=8",
    "model.dropout=0",
    "trainer.batch_size=8",
    "trainer.epochs=2",
]
_NEIGHBOR = ["sampler.fan_outs=[3,2]"]
_MODELS = ["sage", "gat", "gatv2", "gcn", "gin", "mlp"]
_SAMPLER = ["loader"]
_SCALER: dict[str, list[str]] = {"bf16": [], "fp16": ["step"]}
_RESULTS = {"all": ("train/", "val/", "test/"), "loss": "train/loss"}
_TRUSTING = [sys.executable, "-m", "scripts.fake_gpu.trusting"]


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        name: What is tried.
        keys: Overrides for the runs on the CPU and on the GPU.
        gpu_keys: Further ones for the GPU.
        may_wait: Who may wait for the GPU: the loader whose sampler reads the batch's sizes; the
            step with fp16, where torch's gradient scaler reads whether gradients are finite.
        tolerance: Largest relative difference of a number.
        compared: A key of `_RESULTS`.
    """

    name: str
    keys: Sequence[str]
    gpu_keys: Sequence[str]
    may_wait: Sequence[str] = ()
    tolerance: float = 1e-4
    compared: str = "all"


def cases() -> Iterator[Case]:
    """All cases."""
    torch_keys = ["compute.kernels=torch"]
    for model in _MODELS:
        keys = [*_SMALL, f"model={model}", *(_NEIGHBOR if model != "mlp" else [])]
        yield Case(f"torch {model}", keys, torch_keys)
    sage = [*_SMALL, "model=sage", *_NEIGHBOR]
    yield Case("torch full graph", [*_SMALL, "model=gcn", "sampler=full"], torch_keys)
    yield Case("torch memmap", sage, [*torch_keys, "features.placement=memmap"])
    for model in _MODELS:
        keys = [*_SMALL, f"model={model}", *(_NEIGHBOR if model != "mlp" else [])]
        yield Case(f"triton {model}", keys, ["compute.kernels=triton"], may_wait=_SAMPLER)
    places = ["features.placement=pinned", "sampler.topology=pinned"]
    yield Case("triton pinned", sage, places, may_wait=_SAMPLER)
    cached = ["features.placement=cached", "features.cache_ratio=0.2"]
    yield Case("triton cached", sage, cached, may_wait=_SAMPLER)
    yield Case("triton memmap", sage, ["features.placement=memmap"], may_wait=_SAMPLER)
    yield Case("triton cuda graph", sage, ["trainer.cuda_graph=true"], may_wait=_SAMPLER)
    for kernels in ("torch", "triton"):
        for precision in ("bf16", "fp16"):
            keys = [f"trainer.precision={precision}", f"compute.kernels={kernels}"]
            waits = [*(_SAMPLER if kernels == "triton" else []), *_SCALER[precision]]
            yield Case(f"{kernels} {precision}", sage, keys, waits, 0.02, "loss")


class Failed(Exception):
    """A case's result is not what it must be."""


def check(case: Case, folder: Path) -> str:
    """Run a case.

    Returns:
        What was seen.

    Raises:
        Failed: Something is not what it must be.
    """
    on_cpu = ["trainer.device=cpu", "trainer.gpus=0", "compute.kernels=torch"]
    _run(["train", *case.keys, *on_cpu, f"run.dir={folder / 'cpu'}"], folder)
    gpu = folder / "gpu"
    on_gpu = ["trainer.device=cuda", "trainer.gpus=1", *case.gpu_keys, f"run.dir={gpu}"]
    _run(["train", *case.keys, *on_gpu], folder, gpu=True)
    difference = _compare(folder / "cpu", gpu, case.tolerance, case.compared)
    waits = _waits(folder)
    for phase in {"step", "loader"} - set(case.may_wait):
        if waits.get(phase):
            raise Failed(f"a {phase} waits for the GPU: {json.dumps(waits[phase], indent=1)}")
    _run(["evaluate", str(gpu)], folder, gpu=True)
    _run(
        ["predict", str(gpu), "--what", "logits", "--out", f"{folder / 'outputs.npz'}"],
        folder,
        gpu=True,
    )
    return f"largest difference {difference:.1e}"


def check_resume(folder: Path) -> str:
    """Train four epochs in one run, and in two; the numbers must be equal, dropout's included."""
    keys = [*_SMALL, "model=sage", *_NEIGHBOR, "model.dropout=0.5", "compute.kernels=torch"]
    keys += ["trainer.device=cuda", "trainer.gpus=1"]
    whole, halves = folder / "whole", folder / "halves"
    _run(["train", *keys, "trainer.epochs=4", f"run.dir={whole}"], folder, gpu=True)
    _run(["train", *keys, "trainer.epochs=2", f"run.dir={halves}"], folder, gpu=True)
    _run(["resume", str(halves), "trainer.epochs=4"], folder, gpu=True)
    return f"largest difference {_compare(whole, halves, 0.0):.1e}"


def _run(arguments: Sequence[str], folder: Path, *, gpu: bool = False) -> None:
    variables: Mapping[str, str] = os.environ
    if gpu:
        memory = 1 << 30
        fake = environment(gpus=1, memory=memory, delay=200, interpret=True)
        variables = {**fake, "FAKE_GPU_REPORT": str(folder)}
    done = subprocess.run(
        [*_TRUSTING, *arguments], env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        text = f"{done.stdout}\n{done.stderr}"
        raise Failed(f"gnntrain {' '.join(arguments)}: exit code {done.returncode}\n{text[-4000:]}")


def _waits(folder: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for path in folder.glob("*.json"):
        for phase, places in json.loads(path.read_text()).items():
            found.setdefault(phase, {}).update(places)
    return found


def _compare(one: Path, other: Path, tolerance: float, only: str = "all") -> float:
    """The largest relative difference of losses and metrics.

    Raises:
        Failed: It is larger than the tolerance; or the numbers of epochs differ.
    """
    expected, found = _numbers(one, only), _numbers(other, only)
    if len(expected) != len(found) or not all(map(math.isfinite, found)):
        raise Failed(f"found {found}, expected {expected}")
    pairs = zip(expected, found, strict=True)
    largest = max(abs(a - b) / max(abs(a), 1e-3) for a, b in pairs)
    if largest > tolerance:
        raise Failed(f"numbers differ by {largest:.1e}: found {found}, expected {expected}")
    return largest


def _numbers(run: Path, only: str) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row[name] for row in rows for name in sorted(row) if name.startswith(_RESULTS[only])]


def main() -> None:
    words, console = sys.argv[1:], Console(highlight=False)
    checks: dict[str, Callable[[Path], str]] = {case.name: partial(check, case) for case in cases()}
    checks["torch resume"] = check_resume
    failed = []
    for name, run in checks.items():
        if words and not any(word in name for word in words):
            continue
        folder = Path(tempfile.mkdtemp(prefix="fake_gpu-"))
        try:
            console.print(f"{name}: {run(folder)}")
            shutil.rmtree(folder)
        except Failed as reason:
            failed.append(name)
            console.print(f"{name}: FAILED ({folder}): {reason}", markup=False)
    if failed:
        sys.exit(f"{len(failed)} of {len(checks)} cases failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
