from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from gnntrain.data.graph import AnyArray
from gnntrain.data.targets import TargetScale
from gnntrain.tasks import NodeRegression
from tests.examples import examples
from tests.graphs import random_graph, stored
from tests.tasks.oracles import metrics_of

SPLITS = {"train": np.arange(6), "val": np.arange(6, 9), "test": np.arange(9, 12)}


def task_of(path: Path, targets: AnyArray, **options: Any) -> NodeRegression:
    names = options.pop("class_names", None)
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


def test_targets_are_standardised_over_the_training_nodes_alone(tmp_path: Path) -> None:
    targets = np.random.default_rng(0).normal(7, 3, (12, 2)).astype(np.float32)
    targets[1, 0] = np.nan
    scaler = StandardScaler().fit(targets[:6])  # leaves out NaN
    task = task_of(tmp_path, targets)
    assert task.scale.mean == pytest.approx(scaler.mean_)
    assert task.scale.std == pytest.approx(scaler.scale_)
    changed = targets.copy()
    changed[6:] *= 100
    assert task_of(tmp_path / "other", changed).scale == task.scale


@pytest.mark.parametrize("value", [0.1, 1e6 + 0.3, 0.0, -7.3])
def test_a_target_that_does_not_vary_has_deviation_1(tmp_path: Path, value: float) -> None:
    targets = np.full((12, 1), value, np.float32)
    targets[6:] += np.arange(6, dtype=np.float32)[:, None]
    task = task_of(tmp_path, targets)
    assert task.scale.std == [1.0]
    (warning,) = task.warnings()
    assert "value" in warning


def test_a_target_that_no_training_node_has_is_told(tmp_path: Path) -> None:
    targets = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
    targets[:6, 1] = np.nan
    task = task_of(tmp_path, targets, class_names=np.array([b"income", b"rent"]))
    assert task.scale.mean[1] == 0.0
    assert task.scale.std[1] == 1.0
    (warning,) = task.warnings()
    assert "rent" in warning
    assert "income" not in warning


def test_a_split_on_which_r2_is_not_defined_is_told(tmp_path: Path) -> None:
    targets = np.arange(12, dtype=np.float32)[:, None]
    targets[6:9] = 3
    task = task_of(tmp_path, targets)
    (warning,) = task.warnings()
    assert "r2" in warning
    assert "val" in warning
    assert "last epoch" in warning
    outputs = torch.zeros(3, 1)
    found = metrics_of(task, outputs, torch.from_numpy(targets[6:9]))
    assert np.isnan(found["r2"])
    assert found["mae"] == pytest.approx(abs(3 - task.scale.mean[0]))


def test_metrics_are_in_the_users_units_and_the_deciding_one_is_first(tmp_path: Path) -> None:
    targets = np.random.default_rng(0).normal(50_000, 9_000, (12, 1)).astype(np.float32)
    task = task_of(tmp_path, targets)
    standardised = torch.from_numpy((targets - task.scale.mean) / task.scale.std).float()
    assert next(iter(metrics_of(task, standardised, torch.from_numpy(targets)))) == "r2"
    shifted = standardised + 0.5
    found = metrics_of(task, shifted, torch.from_numpy(targets))
    assert found["mae"] == pytest.approx(task.scale.std[0] / 2, rel=1e-4)
    assert found["rmse"] == pytest.approx(task.scale.std[0] / 2, rel=1e-4)


def test_a_missing_target_counts_in_no_metric(tmp_path: Path) -> None:
    targets = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
    targets[2] = np.nan
    targets[4, 0] = np.nan
    splits_without = [0, 1, 3, 4, 5]
    full = np.nan_to_num(targets, nan=9.0)
    task = task_of(tmp_path, full)
    outputs = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    given_all = torch.from_numpy(targets[:6])
    assert metrics_of(task, outputs, given_all) == metrics_of(
        task, outputs[splits_without], given_all[splits_without]
    )
    assert metrics_of(task, outputs[2:3], given_all[2:3]) == {}


def test_it_predicts_in_the_users_units_and_words(tmp_path: Path) -> None:
    targets = np.random.default_rng(0).normal(7, 3, (12, 2)).astype(np.float32)
    task = task_of(tmp_path, targets, class_names=np.array([b"income", b"node"]))
    (column,) = task.predictions()["value"]().columns
    assert column.titles == ["income", "value_node"]
    outputs = torch.tensor([[0.0, 1.0]])
    wanted = [task.scale.mean[0], task.scale.mean[1] + task.scale.std[1]]
    assert column.values(outputs)[0].tolist() == pytest.approx(wanted)
    assert column.values(outputs).dtype == np.float64


@pytest.mark.parametrize(("num_targets", "titles"), [(1, ["value"]), (2, ["value_0", "value_1"])])
def test_targets_without_names_are_values(
    tmp_path: Path, num_targets: int, titles: list[str]
) -> None:
    task = task_of(tmp_path, np.random.default_rng(0).normal(size=(12, num_targets)))
    assert task.predictions()["value"]().columns[0].titles == titles


def test_half_precision_outputs_are_judged_in_float32(tmp_path: Path) -> None:
    targets = np.random.default_rng(0).normal(size=(12, 1)).astype(np.float32)
    task = task_of(tmp_path, targets)
    outputs: Tensor = torch.randn(12, 1, generator=torch.Generator().manual_seed(0)).bfloat16()
    loss = task.loss(outputs, torch.from_numpy(targets))
    assert loss.dtype == torch.float32
    assert loss == task.loss(outputs.float(), torch.from_numpy(targets))
