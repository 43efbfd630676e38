"""Runs with models of random weights, for the tests of what is made of runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gnntrain.config import Config, from_dict
from gnntrain.data.store import StoredGraph
from gnntrain.models import GNN, AnyModel, build_model
from gnntrain.reporting.rundir import RunDirectory, RunPlace
from gnntrain.run_store import record_of
from gnntrain.training.checkpoint import save_checkpoint
from tests.evaluators import layerwise
from tests.processes import python


def run_of(path: Path, store: StoredGraph, model: dict[str, Any], **config: Any) -> GNN:
    """A run directory at `path` about `store`, and its model, whose weights are random."""
    made = any_run_of(path, store, {"hidden_channels": 8, **model}, **config)
    assert isinstance(made, GNN)
    return made


def any_run_of(path: Path, store: StoredGraph, model: dict[str, Any], **config: Any) -> AnyModel:
    """As `run_of`, of any model."""
    num_layers = model.get("num_layers", 2)
    sampler = {"fan_outs": [5] * num_layers}
    raw = {"model": model, "sampler": sampler, **config}
    made_of = from_dict(raw, saved=True)
    torch.manual_seed(0)
    made = build_model(made_of.model, store.schema, store.num_outputs)
    for tensor in made.state_dict().values():  # no constants
        if tensor.is_floating_point():
            torch.nn.init.uniform_(tensor, -0.4, 0.6)
    for name, tensor in made.named_buffers():
        if name.endswith("running_var"):
            tensor.abs_().add_(0.1)
    write_run(path, store, made_of, made)
    return made


def write_run(path: Path, store: StoredGraph, config: Config, model: torch.nn.Module) -> None:
    run = RunDirectory.create(RunPlace(path), config.to_dict())
    run.write("store.json", asdict(record_of(store)))
    run.write("summary.json", {"test": {"accuracy": 0.5}})
    save_checkpoint(run.checkpoints / "best.pt", {"model": model.state_dict(), "epoch": 3})


def logits_of(store: StoredGraph, model: GNN) -> torch.Tensor:
    """The model's exact logits of all nodes."""
    return layerwise(store, store.path).infer(model).logits


def agree_without_us(code: str, folders: list[Path]) -> str:
    """What code prints of exports in a process that cannot import gnntrain."""
    done = python("-c", code, *folders, folder=Path("/"))
    return done.stdout + done.stderr
