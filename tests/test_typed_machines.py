"""Typed runs on several machines, on parts and with servers compute the numbers of one machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.config import Config, from_dict
from gnntrain.data.partitioning.build import partition
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.errors import UserError
from gnntrain.run import evaluate, prepare_store, resume, train
from gnntrain.training.checkpoint import load_checkpoint

KEYS: dict[str, Any] = {
    "dataset": {"name": "synthetic_mag", "scale": 0.0005, "num_classes": 4, "num_features": 8},
    "model": {"name": "rgcn", "hidden_channels": 8},
    "sampler": {"fan_outs": [4, 3]},
    "trainer": {"batch_size": 64, "epochs": 2, "gpus": 0},
    "evaluation": {"name": "layerwise"},
    "distributed": {"timeout": 60.0, "threads": 1},
}
COMPARED = ("train_loss", "train", "val", "test", "num_parameters", "data")

Numbers = tuple[dict[str, Any], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("typed")


def config_of(folder: Path, name: str, **keys: dict[str, Any]) -> Config:
    sections = {*KEYS, *keys}
    merged = {section: {**KEYS.get(section, {}), **keys.get(section, {})} for section in sections}
    merged["dataset"]["store_dir"] = str(folder / "stores")
    return from_dict(merged | {"run": {"dir": str(folder / name)}})


@pytest.fixture(scope="module")
def parts(folder: Path) -> Path:
    """The graph in four parts."""
    store = prepare_store(config_of(folder, "none").dataset).store
    return partition(store, 4, folder / "parts", "streaming").path


@pytest.fixture
def on_machines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the ranks of the next runs believe that they are on several machines."""

    def believe(*machines: int) -> None:
        plan_of = LaunchPlan.of.__func__  # type: ignore[attr-defined]

        def plan(config: Config, *rest: Any) -> LaunchPlan:
            found: LaunchPlan = plan_of(LaunchPlan, config, *rest)
            return replace(found, machines=machines)

        monkeypatch.setattr(LaunchPlan, "of", plan)

    return believe


def trained(config: Config) -> Numbers:
    summary = train(config)
    state = load_checkpoint(Path(config.run.dir or "") / "checkpoints" / "last.pt")
    return summary, state["model"]


def assert_same(found: Numbers, expected: Numbers) -> None:
    for key in COMPARED:
        assert found[0][key] == expected[0][key], key
    for name, weight in expected[1].items():
        assert torch.equal(found[1][name], weight), name


MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "rgcn": {},
    "rgcn of raw features": {
        "model": {"project_inputs": False},
        "sampler": {"fan_outs": {"default": [4, 3], "author/writes/paper": [2, 2]}},
    },
    "sum": {"model": {"name": "hetero_sage", "aggregator": "sum"}},
    "hgt": {"model": {"name": "hgt", "heads": 2}, "sampler": {"fan_out_scope": "node"}},
    "rgat, sampled": {
        "model": {"name": "rgat", "heads": 2},
        "evaluation": {"name": "sampled", "fan_outs": [3, 3]},
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_numbers_on_parts_are_those_of_the_whole_graph_bit_for_bit(
    folder: Path, parts: Path, on_machines: Any, name: str
) -> None:
    keys = {key: dict(values) for key, values in MODELS[name].items()}
    whole = trained(config_of(folder, f"whole {name}", distributed=_ranks(2), **keys))
    on_machines(0, 1)
    in_parts = {**_ranks(2), "graph": "partitioned", "parts": str(parts)}
    found = trained(config_of(folder, f"parts {name}", distributed=in_parts, **keys))
    assert_same(found, whole)


def _ranks(number: int) -> dict[str, Any]:
    return {**KEYS["distributed"], "num_processes": number}


@pytest.mark.parametrize("machines", [(), (0, 0, 1)], ids=str)
def test_parts_of_one_machine_and_of_machines_with_several_ranks(
    folder: Path, parts: Path, on_machines: Any, machines: tuple[int, ...]
) -> None:
    ranks = max(1, len(machines))
    whole = trained(config_of(folder, f"whole {ranks}", distributed=_ranks(ranks)))
    on_machines(*machines)
    in_parts = {**_ranks(ranks), "graph": "partitioned", "parts": str(parts)}
    found = trained(config_of(folder, f"parts {ranks}", distributed=in_parts))
    assert_same(found, whole)


@pytest.mark.parametrize("features", [{}, {"cache_bytes": 0}], ids=str)
def test_machines_that_share_out_the_rows_give_the_numbers_of_one(
    folder: Path, on_machines: Any, features: dict[str, Any]
) -> None:
    keys = {"model": {"project_inputs": False}}
    alone = trained(config_of(folder, f"alone {features}", distributed=_ranks(2), **keys))
    on_machines(0, 1)
    sharded = {**_ranks(2), "graph": "sharded"}
    name = f"sharded {features}"
    config = config_of(folder, name, distributed=sharded, features=features, **keys)
    assert_same(trained(config), alone)
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    rates = [line["cache_hit_rate"] for line in lines]
    assert all(0 < rate < 1 for rate in rates) == ("cache_bytes" not in features)


@pytest.mark.parametrize("graph", ["replicated", "partitioned"])
def test_ranks_with_servers_give_the_numbers_of_ranks_without(
    folder: Path, parts: Path, graph: str
) -> None:
    alone = trained(config_of(folder, f"unserved {graph}", distributed=_ranks(1)))
    served = {**_ranks(3), "servers": 2, "graph": graph}
    if graph == "partitioned":
        served["parts"] = str(parts)
    assert_same(trained(config_of(folder, f"served {graph}", distributed=served)), alone)


def test_a_run_on_parts_goes_on_and_is_evaluated_with_the_whole_graph(
    folder: Path, parts: Path
) -> None:
    whole = trained(config_of(folder, "three epochs", trainer={"epochs": 3}))
    in_parts = {**_ranks(1), "graph": "partitioned", "parts": str(parts)}
    config = config_of(folder, "begun", distributed=in_parts)
    train(config)
    longer = config_of(folder, "begun", trainer={"epochs": 3})
    assert resume(folder / "begun", longer)["train_loss"] == whole[0]["train_loss"]
    assert evaluate(folder / "begun")["metrics"] == evaluate(folder / "three epochs")["metrics"]


def test_parts_of_another_scale_are_refused(folder: Path, parts: Path) -> None:
    in_parts = {"graph": "partitioned", "parts": str(parts)}
    other = {**KEYS["dataset"], "scale": 0.0004}
    with pytest.raises(UserError, match="another graph"):
        train(config_of(folder, "other", dataset=other, distributed=in_parts))
