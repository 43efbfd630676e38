"""A run on a graph in parts computes the numbers of a run on the whole graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.config import Config, from_dict
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.run import prepare_store, train
from gnntrain.training.checkpoint import load_checkpoint

GRAPH = {"name": "synthetic", "num_nodes": 600, "num_classes": 4, "num_features": 8}
KEYS: dict[str, Any] = {
    "dataset": GRAPH,
    "model": {"name": "gcn", "hidden_channels": 8},
    "sampler": {"fan_outs": [5, 3]},
    "trainer": {"batch_size": 32, "epochs": 2, "gpus": 0},
    "evaluation": {"name": "sampled", "fan_outs": [4, 4]},
    "distributed": {"timeout": 60.0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("partitioned")


def config_of(folder: Path, name: str, **keys: dict[str, Any]) -> Config:
    merged = {section: {**KEYS.get(section, {}), **keys.get(section, {})} for section in KEYS}
    merged["dataset"]["store_dir"] = str(folder / "stores")
    return from_dict(merged | {"run": {"dir": str(folder / name)}})


@pytest.fixture(scope="module")
def parts(folder: Path) -> Path:
    """The graph in four parts."""
    store = prepare_store(config_of(folder, "none").dataset).store
    part_of = np.random.default_rng(0).integers(0, 4, store.num_nodes).astype(np.uint8)
    write_parts(folder / "parts", store, part_of, 4, "random")
    return folder / "parts"


@pytest.fixture
def on_machines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the ranks of the next runs believe that they are on several machines."""

    def believe(*machines: int) -> None:
        plan_of = LaunchPlan.of.__func__  # type: ignore[attr-defined]

        def plan(config: Config, *rest: Any) -> LaunchPlan:
            return replace(plan_of(LaunchPlan, config, *rest), machines=machines)

        monkeypatch.setattr(LaunchPlan, "of", plan)

    return believe


def trained(config: Config) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    summary = train(config)
    state = load_checkpoint(Path(config.run.dir or "") / "checkpoints" / "last.pt")
    return summary, state["model"]


@pytest.mark.parametrize("machines", [(), (0, 1), (0, 0, 1, 1)], ids=str)
@pytest.mark.parametrize("keys", [{}, {"trainer": {"class_weights": "balanced"}}], ids=str)
def test_numbers_are_those_of_the_whole_graph_bit_for_bit(
    folder: Path, parts: Path, on_machines: Any, machines: tuple[int, ...], keys: dict[str, Any]
) -> None:
    ranks = max(1, len(machines))
    name = f"{len(machines)}{'b' if keys else ''}"
    keys = {"distributed": KEYS["distributed"] | {"num_processes": ranks}} | keys
    whole = trained(config_of(folder, f"whole{name}", **keys))
    on_machines(*machines)
    keys["distributed"] |= {"graph": "partitioned", "parts": str(parts)}
    found = trained(config_of(folder, f"parts{name}", **keys))
    for key in ("train_loss", "train", "val", "test", "num_parameters", "data"):
        assert found[0][key] == whole[0][key], key
    assert all(torch.equal(found[1][key], weight) for key, weight in whole[1].items())
