"""The first weights of a new run, taken from the best model of another: `trainer.init_from`."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gnntrain.config import Config
from gnntrain.data.graph import Graph
from gnntrain.data.summary import first_names
from gnntrain.errors import UserError
from gnntrain.models import AnyModel, build_model
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run_store import model_signature, refuse_other_types
from gnntrain.training.checkpoint import load_checkpoint

_log = logging.getLogger(__name__)


def resolved_source(config: Config, graph: Graph) -> Config:
    """The configuration with `trainer.init_from` as an absolute path, also for `latest`; warns of
    weights that begin at random.

    Raises:
        UserError: There is no such run, or none of its weights fits the model.
    """
    assert config.trainer.init_from is not None
    run = RunDirectory.open(config.trainer.init_from)
    config = config.changed(trainer={"init_from": str(run.path)})
    _, taken, fresh = _fitting(config, run, graph)
    if not any(weight.dim() > 1 for weight in taken.values()):
        raise UserError(
            f"trainer.init_from={run.shown}: none of its matrices fits this model, whose "
            f"{first_names(fresh)} have other names or shapes, or count other features or classes.",
            "Its config.yaml has the keys of model that it was trained with, among them "
            f"model={run.config()['model']['name']}.",
        )
    if fresh:
        _log.warning(
            "trainer.init_from=%s: these weights begin at random, as name or shape differ, or the "
            "features, nodes or classes that they count: %s",
            *(run.shown, first_names(fresh)),
        )
    return config


def take_weights(config: Config, model: AnyModel, graph: Graph) -> dict[str, Any] | None:
    """Give a new model, random and equal on all ranks, the weights of the run `trainer.init_from`,
    an absolute path, whose names and shapes agree; None: it is not set.

    Returns:
        `initial_weights` of `summary.json`: the directory of the `run`, its best `epoch`, and of
        the model's `num_parameters` the `num_taken`.
    """
    if config.trainer.init_from is None:
        return None
    run = RunDirectory.open(config.trainer.init_from)
    epoch, taken, _ = _fitting(config, run, graph)
    model.load_state_dict(taken, strict=False)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    return {
        "run": str(run.path),
        "epoch": epoch,
        "num_taken": sum(size for name, size in sizes.items() if name in taken),
        "num_parameters": sum(sizes.values()),
    }


def _fitting(
    config: Config, run: RunDirectory, graph: Graph
) -> tuple[int, dict[str, Tensor], list[str]]:
    """The best epoch of a run, its weights that a model for the graph takes, and the names of those
    that begin at random; a UserError where the graphs' types differ."""
    signature, subject = model_signature(run), f"trainer.init_from={run.shown}: its model"
    refuse_other_types(signature, graph, subject=subject, exactly=True)
    checkpoint = run.best_checkpoint()
    state = load_checkpoint(checkpoint)
    weights = state["model"]
    # A weight that counts other features, nodes or classes than the run's, or in another order,
    # does not fit, even if there are as many. It is one whose shape changes where those double.
    widths, numbers = dict(graph.schema.num_features), dict(graph.schema.num_nodes)
    for name, nodes in graph.nodes.items():
        made_by = signature.preprocessing.get(name)
        if not nodes.num_features and signature.has_other_nodes(graph, name):
            numbers[name] *= 2
        elif made_by is not None and made_by.has_names and nodes.feature_names:
            widths[name] *= 1 + (list(made_by.feature_names) != list(nodes.feature_names))
    doubled = replace(graph.schema, num_features=widths, num_nodes=numbers)
    there, here = (
        [*map(str, labels.class_names or range(labels.num_classes))]
        for labels in (signature, graph)
    )
    outputs = graph.num_outputs
    with torch.device("meta"):
        model = build_model(config.model, graph.schema, outputs).state_dict()
        other = build_model(config.model, doubled, outputs * (1 + (there != here))).state_dict()
    taken, fresh = dict[str, Tensor](), list[str]()
    for name, weight in model.items():
        if isinstance(weight, Tensor):  # not the state of a module of one's own
            found = [getattr(one.get(name), "shape", None) for one in (weights, other)]
            if found == [weight.shape] * 2:
                taken[name] = weights[name]
            else:
                fresh.append(name)
    return state["epoch"], taken, fresh
