from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from gnntrain.data.graph import AnyArray
from gnntrain.data.targets import TargetScale
from gnntrain.tasks import NodeRegression
from tests.evaluators import metrics_of
from tests.examples import examples
from tests.graphs import random_graph, stored

SPLITS = {"train": np.arange(6), "val": np.arange(6, 9), "test": np.arange(9, 12)}


def task_of(path: Path, targets: AnyArray, names: Any = None, **options: Any) -> NodeRegression:
    data = random_graph(
        len(targets),
        30,
        task="continuous",
        labels=targets,
        num_classes=targets.shape[1],
        splits=SPLITS,
        class_names=names,
    )
    return NodeRegression(stored(path / "store", data), **options)


def normal(*shape: int, mean: float = 0.0, std: float = 1.0) -> Any:
    return np.random.default_rng(0).normal(mean, std, shape).astype(np.float32)


def obvious_loss(
    outputs: AnyArray, targets: AnyArray, scale: TargetScale, loss: str, delta: float
) -> float:
    """Node by node, target by target."""
    total = 0.0
    for row, wanted in zip(outputs.tolist(), targets.tolist(), strict=True):
        found = []
        for i, target in enumerate(wanted):
            if target != target:
                continue
            error = abs(row[i] - (target - scale.mean[i]) / scale.std[i])
            is_linear = loss == "huber" and error > delta
            quadratic = error**2 / 2 if loss == "huber" else error**2
            found.append(delta * (error - delta / 2) if is_linear else quadratic)
        total += sum(found) / len(found) if found else 0.0
    return total


@pytest.mark.parametrize("loss", ["mse", "huber"])
@examples(40)
@given(
    seed=st.integers(0, 2**16),
    num_targets=st.integers(1, 4),
    offset=st.sampled_from([0.0, -3.0, 1e6]),
    delta=st.sampled_from([0.1, 1.0, 3.0]),
)
def test_the_loss_is_the_mean_over_the_targets_that_a_node_has(
    tmp_path_factory: pytest.TempPathFactory,
    loss: Literal["mse", "huber"],
    seed: int,
    num_targets: int,
    offset: float,
    delta: float,
) -> None:
    rng = np.random.default_rng(seed)
    targets = (rng.normal(size=(12, num_targets)) * 30 + offset).astype(np.float32)
    targets[:, 1:][rng.random((12, num_targets - 1)) < 0.3] = np.nan
    folder = tmp_path_factory.mktemp("graph")
    task = task_of(folder, targets, loss=loss, huber_delta=delta)
    outputs = torch.from_numpy(rng.normal(size=(12, num_targets)).astype(np.float32))
    outputs.requires_grad_()
    found = task.loss(outputs, torch.from_numpy(targets))
    wanted = obvious_loss(outputs.detach().numpy(), targets, task.scale, loss, delta)
    assert found.item() == pytest.approx(wanted, rel=1e-4)
    found.backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    assert ((outputs.grad == 0) == torch.from_numpy(np.isnan(targets))).all()
    halved = task.loss(outputs.bfloat16(), torch.from_numpy(targets))
    assert halved.dtype == torch.float32
    assert halved == task.loss(outputs.bfloat16().float(), torch.from_numpy(targets))


def test_targets_are_standardised_over_the_training_nodes_alone(tmp_path: Path) -> None:
    targets = normal(12, 2, mean=7, std=3)
    targets[1, 0] = np.nan
    scaler = StandardScaler().fit(targets[:6])  # leaves out NaN
    targets[6:] *= 100
    task = task_of(tmp_path, targets)
    assert task.scale.mean == pytest.approx(scaler.mean_)
    assert task.scale.std == pytest.approx(scaler.scale_)


@pytest.mark.parametrize(
    ("of_training", "val", "words"),
    [
        *(([[v]] * 6, [[v], [v + 1], [v + 2]], ["value"]) for v in (0.1, 1e6 + 0.3, 0.0, -7.3)),
        ([[i, math.nan] for i in range(6)], [[0, 1], [1, 0], [2, 2]], ["rent"]),
        ([[i] for i in range(6)], [[3], [3], [3]], ["r2", "val", "last epoch"]),
    ],
)
def test_targets_that_tell_nothing_apart_are_told(
    tmp_path: Path, of_training: Any, val: Any, words: list[str]
) -> None:
    targets = np.array([*of_training, *val, *val[:2], [5.0] * len(val[0])], np.float32)
    names = np.array([b"income", b"rent"]) if "rent" in words else None
    if words[0] == "r2":
        targets[9:] += [[0], [1], [2]]
    task = task_of(tmp_path, targets, names)
    (warning,) = task.warnings()
    assert all(word in warning for word in words)
    assert "income" not in warning
    if words[0] == "r2":
        found = metrics_of(task, torch.zeros(3, 1), torch.from_numpy(targets[6:9]))
        assert np.isnan(found["r2"])
        assert found["mae"] == pytest.approx(abs(3 - task.scale.mean[0]))
    else:
        assert task.scale.std[-1] == 1.0


def test_metrics_are_in_the_users_units_and_the_deciding_one_is_first(tmp_path: Path) -> None:
    targets = normal(12, 1, mean=50_000, std=9_000)
    task = task_of(tmp_path, targets)
    shifted = torch.from_numpy((targets - task.scale.mean) / task.scale.std + 0.5).float()
    found = metrics_of(task, shifted, torch.from_numpy(targets))
    assert next(iter(found)) == "r2"
    assert found["mae"] == pytest.approx(task.scale.std[0] / 2, rel=1e-4)
    assert found["rmse"] == pytest.approx(task.scale.std[0] / 2, rel=1e-4)


def test_a_missing_target_counts_in_no_metric(tmp_path: Path) -> None:
    targets = normal(12, 2)
    task = task_of(tmp_path, targets.copy())
    targets[2] = targets[4, 0] = np.nan
    outputs, wanted = torch.from_numpy(normal(6, 2)), torch.from_numpy(targets[:6])
    others = [0, 1, 3, 4, 5]
    assert metrics_of(task, outputs, wanted) == metrics_of(task, outputs[others], wanted[others])
    assert metrics_of(task, outputs[2:3], wanted[2:3]) == {}


@pytest.mark.parametrize(
    ("names", "titles"),
    [
        (np.array([b"income", b"node"]), ["income", "value_node"]),
        (None, ["value_0", "value_1"]),
        (None, ["value"]),
    ],
)
def test_it_predicts_in_the_users_units_and_words(
    tmp_path: Path, names: Any, titles: list[str]
) -> None:
    task = task_of(tmp_path, normal(12, len(titles), mean=7, std=3), names)
    (column,) = task.predictions()["value"]().columns
    assert column.titles == titles
    values = column.values(torch.ones(1, len(titles)))
    assert values[0].tolist() == pytest.approx(np.add(task.scale.mean, task.scale.std).tolist())
    assert values.dtype == np.float64
