"""The first weights of a new run, taken from the best model of another: `trainer.init_from`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnntrain.config import Config, from_dict
from gnntrain.config.problems import shown
from gnntrain.data.graph import AnyArray, Graph, GraphSchema, Int64Array
from gnntrain.data.summary import first_names
from gnntrain.errors import UserError
from gnntrain.models import AnyModel, build_model
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run_store import ModelSignature, model_signature, recorded_store, refuse_other_types
from gnntrain.training.checkpoint import epoch_of, load_checkpoint, other_weights, weights_of

_log = logging.getLogger(__name__)


def resolved_source(config: Config, graph: Graph) -> Config:
    """The configuration with `trainer.init_from` as an absolute path, also for `latest`.

    Raises:
        UserError: There is no such run, or its weights do not fit the model.
    """
    assert config.trainer.init_from is not None
    run = RunDirectory.open(config.trainer.init_from)
    trainer = config.trainer.model_copy(update={"init_from": str(run.path)})
    config = config.model_copy(update={"trainer": trainer})
    datasets = from_dict(run.config(), saved=True).dataset, config.dataset
    was, now = (getattr(dataset, "standardize", False) for dataset in datasets)
    if was != now:
        _log.warning(
            "trainer.init_from=%s: its model was trained with dataset.standardize=%s, this one is "
            "with %s: the weights are for features of another scale",
            *(run.shown, shown(was), shown(now)),
        )
    _, _, moved = _source(config, run, graph)
    if named := [str(axis) for axis in moved if axis.label]:
        _log.warning("trainer.init_from=%s: matched by name: %s", run.shown, ", ".join(named))
    return config


def take_weights(config: Config, model: AnyModel, graph: Graph) -> dict[str, Any] | None:
    """Give a new model, random and equal on all ranks, the weights of the run `trainer.init_from`,
    an absolute path; None: it is not set.

    What is of a class, a feature or a node without features is matched by its name; new ones stay
    random. Classes without names stay random where their number differs.

    Returns:
        `initial_weights` of `summary.json`: the directory of the `run`, its best `epoch`, and of
        the model's `num_parameters` the `num_taken`.

    Raises:
        UserError: The run is missing, or other weights differ.
    """
    if config.trainer.init_from is None:
        return None
    run = RunDirectory.open(config.trainer.init_from)
    epoch, given, moved = _source(config, run, graph)
    weights = placed_weights(config, model, given, moved)
    model.load_state_dict({name: weight for name, (weight, _) in weights.items()}, strict=False)
    parameters = {name: weight.numel() for name, weight in model.named_parameters()}
    num_taken = sum(int(is_run[1].sum()) for name, is_run in weights.items() if name in parameters)
    num_parameters = sum(parameters.values())
    taken = {"run": str(run.path), "epoch": epoch, "num_taken": num_taken}
    return {**taken, "num_parameters": num_parameters}


@dataclass(frozen=True, eq=False)
class Axis:
    """What a dimension of some weights counts: features or rows of a node type, or outputs."""

    label: str  # in messages; empty: the names are not known, all begin fresh
    there: AnyArray  # the names in the run
    here: AnyArray  # the names in the graph
    # Inputs and outputs here with twice as many of these: the dimensions of a model so built that
    # differ are those that count them.
    doubled: tuple[GraphSchema, int]

    @cached_property
    def source(self) -> Int64Array:
        """By place here the place in the run, −1 for what begins fresh."""
        if not self.label:
            return np.full(len(self.here), -1)
        before, after = self.there, self.here
        if before.dtype.kind != after.dtype.kind:  # ids that all were numbers, and now are texts
            before, after = before.astype(bytes), after.astype(bytes)
        order = np.argsort(before, kind="stable")
        found = order[np.minimum(np.searchsorted(before, after, sorter=order), len(before) - 1)]
        return np.where(before[found] == after, found, -1)

    def __str__(self) -> str:
        source, changes = self.source, []
        left_out = np.delete(self.there, source[source >= 0])
        for what, some in (("new", self.here[source < 0]), ("left out", left_out)):
            texts = [name.decode() if isinstance(name, bytes) else str(name) for name in some[:20]]
            changes += [f"{what}: {first_names(texts)}"] if texts else []
        taken = f"{(source >= 0).sum():,} of {len(source):,} {self.label}"
        return f"{taken} ({'; '.join(changes) or 'in another order'})"


def _source(
    config: Config, run: RunDirectory, graph: Graph
) -> tuple[int, dict[str, Tensor], list[Axis]]:
    """The best epoch of a run, its weights, and the features, learnt rows and outputs that are not
    at their places in it; a UserError where model, types, or features or nodes without known names
    are others."""
    signature, subject = model_signature(run), f"trainer.init_from={run.shown}: its model"
    refuse_other_types(signature, graph, subject=subject, exactly=True)
    checkpoint = run.best_checkpoint()
    state = load_checkpoint(checkpoint)
    given = weights_of(state, checkpoint)
    with torch.device("meta"):
        wanted = build_model(config.model, signature.schema, signature.num_outputs).state_dict()
    if differing := other_weights(given, wanted):
        theirs = from_dict(run.config(), saved=True).model.model_dump(mode="json")
        ours = config.model.model_dump(mode="json")
        keys = [f"model.{k}={shown(value)}" for k, value in theirs.items() if value != ours.get(k)]
        if theirs["name"] != ours["name"]:
            keys = [f"model={theirs['name']}"]
        older = "An older gnntrain trained it: train it anew."
        raise UserError(
            f"trainer.init_from={run.shown}: the weights are another model's: {differing}.",
            f"It was trained with {', '.join(keys)}." if keys else older,
        )
    moved = moved_axes(config, run, signature, graph, subject=subject, by_name=True)
    return epoch_of(state, checkpoint), given, moved


def moved_axes(
    config: Config,
    run: RunDirectory,
    signature: ModelSignature,
    graph: Graph,
    *,
    subject: str,
    by_name: bool,
) -> list[Axis]:
    """What is not at its place in a run: rows that its model has learnt for nodes without features,
    found by their ids; `by_name` also features and outputs, and some may begin fresh. A UserError
    where features or nodes are others."""
    here, there, outputs, axes = graph.schema, signature.schema, graph.num_outputs, list[Axis]()
    learns_rows = config.model.is_hetero
    store = recorded_store(run.store_record()) if learns_rows else None
    for name, width in here.num_features.items():
        wanted, of_type = there.num_features[name], f" of {name}" if graph.is_hetero else ""
        kind = f" of type {name}" if graph.is_hetero else ""
        made_by, names = signature.preprocessing.get(name), graph.nodes[name].feature_names
        if by_name and width and wanted and names and made_by and made_by.has_names:
            twice = replace(here, num_features={**here.num_features, name: 2 * width})
            before, after = np.array(made_by.feature_names), np.array(names)
            axes.append(Axis(f"features{of_type}", before, after, (twice, outputs)))
        elif width != wanted:
            raise UserError(
                f"{subject} takes {wanted} features a node{kind}; the graph {graph.dataset} has "
                f"{width}.",
                "Give the features it was trained on, in the same order.",
            )
        elif learns_rows and not width and signature.has_other_nodes(graph, name):
            number, is_found = here.num_nodes[name], False
            if store is not None:  # else no ids are known
                both = store.nodes[name], graph.nodes[name]
                kinds = {nodes.ids.dtype.kind for nodes in both if nodes.ids is not None}
                is_known = kinds == {"i"} or all(nodes.ids is not None for nodes in both)
                # Ids 0, 1, … are not stored.
                before, after = (np.arange(len(n)) if n.ids is None else n.ids for n in both)
                twice = replace(here, num_nodes={**here.num_nodes, name: 2 * number})
                rows = Axis(f"learnt rows{of_type}", before, after, (twice, outputs))
                is_found = is_known and len(after) == number and (by_name or -1 not in rows.source)
            if not is_found:
                raise UserError(
                    f"{subject} has learnt a row for each of the {there.num_nodes[name]:,} nodes"
                    f"{kind} that it was trained on, which have no features; the "
                    f"{len(graph.nodes[name]):,} of the graph {graph.dataset} are others.",
                    "Give these nodes features, and train on them.",
                )
            axes.append(rows)
    if by_name and (signature.class_names, graph.class_names) != (None, None):
        what, names_of = "targets" if graph.task == "continuous" else "classes", []
        for labels in (signature, graph):
            called = [*map(str, labels.class_names or range(labels.num_classes))]
            # Of two classes, one output says the difference.
            names_of.append(np.array([" or ".join(called)] if labels.task == "binary" else called))
        axes.append(Axis(what, names_of[0], names_of[1], (here, 2 * outputs)))
    elif by_name and signature.num_outputs != outputs:
        numbers = np.arange(signature.num_outputs), np.arange(outputs)
        axes.append(Axis("", *numbers, (here, 2 * outputs)))
    return [axis for axis in axes if not np.array_equal(axis.source, np.arange(len(axis.there)))]


def placed_weights(
    config: Config, model: AnyModel, given: Mapping[str, Tensor], moved: Sequence[Axis]
) -> dict[str, tuple[Tensor, Tensor]]:
    """The weights of a run at the places of their names in `model`; and by value whether it is the
    run's, else it is as in `model`."""
    doubled = []  # each axis with the model of twice as many
    for axis in moved:
        with torch.device("meta"):
            doubled.append((axis, build_model(config.model, *axis.doubled).state_dict()))
    weights = {}
    for name, fresh in model.state_dict().items():
        # Such as a residual's, where its widths are equal in the run; or a state that is no tensor.
        if name not in given or not isinstance(fresh, Tensor):
            continue
        weight, is_taken = given[name], torch.ones(fresh.shape, dtype=torch.bool)
        for axis, twice in doubled:
            source, larger = axis.source, twice.get(name)
            if larger is None or larger.dim() != fresh.dim():  # whatever it counts: it begins fresh
                is_taken[:] = False
                continue
            for dim, (before, after) in enumerate(zip(fresh.shape, larger.shape, strict=True)):
                if after == before:
                    continue
                blocks, rest = divmod(before, len(source))  # such as heads, each of all outputs
                places = np.full(before, -1)
                if rest == 0 and after == 2 * before:
                    starts = np.arange(blocks)[:, None] * len(axis.there)
                    places = np.where(source < 0, -1, starts + source).ravel()
                index = torch.from_numpy(places)
                is_taken &= (index >= 0).view([-1 if at == dim else 1 for at in range(fresh.dim())])
                weight = weight.index_select(dim, index.clamp(min=0))
        if not is_taken.all():
            fresh = fresh.cpu()
            weight = torch.where(is_taken, weight, fresh) if is_taken.any() else fresh
        weights[name] = weight, is_taken
    return weights
