"""Metrics of a split in pieces are those of the whole split."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnntrain import metrics
from gnntrain.data.targets import TargetScale
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.metrics import DEFAULT_METRICS, metric
from gnntrain.tasks import NodeClassification, NodeRegression, Task
from gnntrain.tasks.base import SplitSlice
from gnntrain.training.evaluation import CONSTANT, split_metrics
from tests.evaluators import metrics_of
from tests.examples import examples

KINDS = ("multiclass", "binary", "multilabel", "continuous")
WIDTH = 3

DECIDING = {"multiclass": ("accuracy", "f1_micro", "last_output"), "multilabel": ("roc_auc",)}
"""Deciding metrics beside the usual one; `last_output` is another package's, which needs all
outputs, in their order."""


def task_of(kind: str, deciding: str | None = None) -> Task:
    by_default = {str(kind): name for kind, name in DEFAULT_METRICS.items()}
    classes = 2 if kind == "binary" else WIDTH
    graph: Any = SimpleNamespace(
        task=kind,
        metric=deciding or by_default[kind],
        ogb_name=None,
        num_classes=classes,
        class_names=None,
    )
    if kind == "continuous":
        return NodeRegression(graph, scale=TargetScale(mean=[1e6, 0.0, 3.0], std=[2.0, 1.0, 1e-3]))
    return NodeClassification(graph, positive=0, top_k=7)


def split_of(kind: str, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Outputs and targets; some targets are missing."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(size, 1 if kind == "binary" else WIDTH)).astype(np.float32)
    if kind == "continuous":
        targets = rng.normal([1e6, 0.0, 3.0], [2.0, 1.0, 1e-3], (size, WIDTH)).astype(np.float32)
        targets[rng.random((size, WIDTH)) < 0.2] = np.nan
        targets[:, 1] = 0.5  # R² is not defined
    elif kind == "multilabel":
        targets = rng.integers(0, 2, (size, WIDTH)).astype(np.uint8)
    else:
        outputs = outputs.round(1)  # some are equal
        targets = rng.integers(-1, 2 if kind == "binary" else WIDTH, size).astype(np.int32)
    return torch.from_numpy(outputs), torch.from_numpy(targets)


def pieces_of(
    outputs: Tensor, targets: Tensor, slice_size: int, rank: int, world_size: int
) -> Iterator[SplitSlice]:
    """Of each slice the seeds that a shuffle gives the rank."""
    rank_of = torch.from_numpy(np.random.default_rng(1).integers(0, world_size, len(outputs)))
    for start in range(0, len(outputs), slice_size):
        stop = min(start + slice_size, len(outputs))
        places = (rank_of[start:stop] == rank).nonzero().flatten()
        yield SplitSlice(places, outputs[start + places], targets[start + places])


def equal(found: dict[str, float], expected: dict[str, float], *, exactly: bool) -> bool:
    same = found == expected if exactly else found == pytest.approx(expected, rel=1e-9, nan_ok=True)
    return same and list(found) == list(expected)


@examples(60)
@given(
    kind=st.sampled_from(KINDS),
    size=st.integers(0, 60),
    slice_size=st.integers(1, 70),
    seed=st.integers(0, 1000),
    is_constant=st.booleans(),
)
def test_pieces_of_one_rank_give_the_whole_splits_metrics(
    kind: str, size: int, slice_size: int, seed: int, is_constant: bool
) -> None:
    task, whole = task_of(kind), split_of(kind, size, seed)
    if is_constant:
        whole[0][:] = whole[0][:1]
    found = split_metrics(task, pieces_of(*whole, slice_size, 0, 1), DistributedContext())
    # Counts, and outputs put in order, are exact.
    ranked = kind == "binary" and any(map(math.isnan, found.values()))
    expected = metrics_of(task, *whole)
    if is_constant and expected and size > 1:
        expected[CONSTANT] = 1.0
    assert equal(found, expected, exactly=kind != "continuous" and not ranked)


def judge(context: DistributedContext, out: Path) -> None:
    register_last_output()
    found = {}
    for kind in KINDS:
        for size in (0, 1, 50):
            for deciding in DECIDING.get(kind, (None,)):
                pieces = pieces_of(*split_of(kind, size, 7), 8, context.rank, context.world_size)
                task = task_of(kind, deciding)
                found[kind, deciding, size] = split_metrics(task, pieces, context)
    torch.save(found, out / f"{context.rank}.pt")


def register_last_output() -> None:
    @metric("last_output", higher_is_better=True, label_kinds=("multiclass",))
    def last_output(outputs: Tensor, targets: Tensor) -> float:
        return float(outputs[-1, 0]) + len(targets)


def test_ranks_together_give_the_whole_splits_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_REGISTERED", metrics._REGISTERED.copy())
    register_last_output()
    launch(judge, tmp_path, LaunchPlan(3, "cpu", 1, 60, (0, 0, 1)), tmp_path)
    found, *others = (torch.load(tmp_path / f"{rank}.pt") for rank in range(3))
    assert not any(values for other in others for values in other.values())
    for (kind, deciding, size), values in found.items():
        expected = metrics_of(task_of(kind, deciding), *split_of(kind, size, 7))
        assert equal(values, expected, exactly=False)


def test_deviations_far_smaller_than_the_mean_are_kept() -> None:
    task = task_of("continuous")
    outputs, targets = split_of("continuous", 5000, 3)
    found = split_metrics(task, pieces_of(outputs, targets, 7, 0, 1), DistributedContext())
    assert found["r2"] == pytest.approx(metrics_of(task, outputs, targets)["r2"], rel=1e-10)
