"""The first weights of a new run, taken from the best model of another: `trainer.init_from`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
from gnntrain.reporting.text import shown_path
from gnntrain.run_store import (
    ModelSignature,
    model_signature,
    recorded_store,
    refuse_other_types,
)
from gnntrain.training.checkpoint import State, epoch_of, load_checkpoint, weights_of

_NUM_SHOWN = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InitialWeights:
    """The initial weights of a model, taken from the best epoch of a run; other parameters are
    random."""

    run: str  # its directory
    epoch: int
    num_taken: int  # parameters
    num_parameters: int  # of the model

    def __str__(self) -> str:
        taken = f"{self.num_taken:,} of {self.num_parameters:,} parameters"
        return f"{taken} from {shown_path(self.run)}, epoch {self.epoch}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in `summary.json` and checkpoints."""
        return asdict(self)

    @classmethod
    def saved_in(cls, state: State) -> InitialWeights | None:
        """The initial weights of a resumed run, from its checkpoint; None: random weights."""
        saved = state.get("initial_weights")
        return None if saved is None else cls(**saved)


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
    if named := [str(axis) for axis in moved if axis.is_named]:
        _log.warning("trainer.init_from=%s: matched by name: %s", run.shown, ", ".join(named))
    return config


def take_weights(config: Config, model: AnyModel, graph: Graph) -> InitialWeights | None:
    """Give a new model the weights of the run `trainer.init_from`; None: it is not set.

    What is of a class, a feature or a node without features is matched by its name; new ones stay
    random. Classes without names stay random where their number differs.

    Args:
        config: The result of `resolved_source`.
        model: With random weights, equal on all ranks.
        graph: The graph it is made for.

    Raises:
        UserError: The run is missing, or other weights differ.
    """
    if config.trainer.init_from is None:
        return None
    run = RunDirectory.open(config.trainer.init_from)
    epoch, given, moved = _source(config, run, graph)
    places = places_of(config, model, moved)
    weights, num_taken = {}, 0
    parameters = {name: weight.numel() for name, weight in model.named_parameters()}
    for name, fresh in model.state_dict().items():
        if name not in given:  # such as a residual's, where its widths are equal in the run
            continue
        weights[name], is_taken = placed(given[name], fresh.cpu(), places.get(name, {}))
        num_taken += int(is_taken.sum()) if name in parameters else 0
    model.load_state_dict(weights, strict=False)
    return InitialWeights(str(run.path), epoch, num_taken, sum(parameters.values()))


@dataclass(frozen=True, eq=False)
class Axis:
    """What a dimension of some weights counts: features or rows of a node type, or outputs.

    Attributes:
        label: What it is called in messages.
        there: The names in the run.
        here: The names in the graph.
        doubled: The inputs and outputs here with twice as many of these: the dimensions of a model
            so built that differ are those that count them.
        is_named: Whether names are known; else all begin fresh.
    """

    label: str
    there: AnyArray
    here: AnyArray
    doubled: tuple[GraphSchema, int]
    is_named: bool = True

    @cached_property
    def source(self) -> Int64Array:
        """By place here the place in the run, −1 for what begins fresh."""
        if not self.is_named:
            return np.full(len(self.here), -1)
        before, after = self.there, self.here
        if before.dtype.kind != after.dtype.kind:  # ids that all were numbers, and now are texts
            before, after = before.astype(bytes), after.astype(bytes)
        order = np.argsort(before, kind="stable")
        found = order[np.minimum(np.searchsorted(before, after, sorter=order), len(before) - 1)]
        return np.where(before[found] == after, found, -1)

    def __str__(self) -> str:
        source = self.source
        names = {
            "new": self.here[source < 0],
            "left out": np.delete(self.there, source[source >= 0]),
        }
        changes = []
        for what, some in names.items():
            texts = [name.decode() if isinstance(name, bytes) else str(name) for name in some[:20]]
            changes += [f"{what}: {first_names(texts)}"] if texts else []
        taken = f"{(source >= 0).sum():,} of {len(source):,} {self.label}"
        return f"{taken} ({'; '.join(changes) or 'in another order'})"


def _source(
    config: Config, run: RunDirectory, graph: Graph
) -> tuple[int, dict[str, Tensor], list[Axis]]:
    """The best epoch of a run, its weights, and the features, learnt rows and outputs that are not
    at their places in it.

    Raises:
        UserError: The weights are another model's, or of types that are others, or of features or
            nodes that are others and whose names are not known.
    """
    signature, subject = model_signature(run), f"trainer.init_from={run.shown}: its model"
    refuse_other_types(signature, graph, subject=subject, exactly=True)
    checkpoint = run.best_checkpoint()
    state = load_checkpoint(checkpoint)
    given = weights_of(state, checkpoint)
    shapes = {name: weight.shape for name, weight in given.items()}
    wanted = _shapes(config, signature.schema, signature.num_outputs)
    differing = [
        f"{name} is {_shape(shapes.get(name))} there and {_shape(wanted.get(name))} here"
        for name in dict.fromkeys([*wanted, *given])
        if shapes.get(name) != wanted.get(name)
    ]
    if differing:
        more = len(differing) - _NUM_SHOWN
        text = "; ".join(differing[:_NUM_SHOWN]) + (f"; and {more} more differ" * (more > 0))
        theirs = from_dict(run.config(), saved=True).model.model_dump(mode="json")
        ours = config.model.model_dump(mode="json")
        keys = [
            f"model.{key}={shown(theirs[key])}" for key in theirs if theirs[key] != ours.get(key)
        ]
        if theirs["name"] != ours["name"]:
            keys = [f"model={theirs['name']}"]
        raise UserError(
            f"trainer.init_from={run.shown}: the weights are another model's: {text}.",
            f"It was trained with {', '.join(keys)}."
            if keys
            else "An older gnntrain trained it: train it anew.",
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
    found by their ids; `by_name` also features and outputs, and some may begin fresh.

    Raises:
        UserError: Features or nodes are others.
    """
    here, outputs, axes = graph.schema, graph.num_outputs, list[Axis]()
    learns_rows, store = config.model.is_hetero, recorded_store(run.store_record())
    for name, width in here.num_features.items():
        of_type = f" of {name}" if graph.is_hetero else ""
        made_by, names = signature.made_by(name), graph.nodes[name].feature_names
        is_named = made_by is not None and made_by.has_names and names is not None
        widths = {width, signature.schema.num_features[name]}
        if by_name and is_named and 0 not in widths:
            assert made_by is not None
            twice = replace(here, num_features={**here.num_features, name: 2 * width})
            before, after = np.array(made_by.feature_names), np.array(names)
            axes.append(Axis(f"features{of_type}", before, after, (twice, outputs)))
            continue
        if learns_rows and widths == {0} and store is not None:  # else no ids are known
            both = store.nodes[name], graph.nodes[name]
            kinds = {nodes.ids.dtype.kind for nodes in both if nodes.ids is not None}
            is_known = kinds == {"i"} or all(nodes.ids is not None for nodes in both)
            # Ids 0, 1, … are not stored.
            before, after = (np.arange(len(n)) if n.ids is None else n.ids for n in both)
            twice = replace(here, num_nodes={**here.num_nodes, name: 2 * here.num_nodes[name]})
            rows = Axis(f"learnt rows{of_type}", before, after, (twice, outputs))
            is_whole = len(after) == here.num_nodes[name] and (by_name or -1 not in rows.source)
            if is_known and is_whole and signature.has_other_nodes(graph, name):
                axes.append(rows)
                continue
        wanted, kind = signature.schema.num_features[name], f" of type {name}" * graph.is_hetero
        if width != wanted:
            raise UserError(
                f"{subject} takes {wanted} features a node{kind}; the graph {graph.dataset} has "
                f"{width}.",
                "Give the features it was trained on, in the same order.",
            )
        if learns_rows and width == 0 and signature.has_other_nodes(graph, name):
            number = signature.schema.num_nodes[name]
            raise UserError(
                f"{subject} has learnt a row for each of the {number:,} nodes{kind} that it was "
                f"trained on, which have no features; the {len(graph.nodes[name]):,} of the graph "
                f"{graph.dataset} are others.",
                "Give these nodes features, and train on them.",
            )
    if by_name and (signature.class_names, graph.class_names) != (None, None):
        what = "targets" if graph.task == "continuous" else "classes"
        before, after = _output_names(signature), _output_names(graph)
        axes.append(Axis(what, before, after, (here, 2 * outputs)))
    elif by_name and signature.num_outputs != outputs:
        numbers = np.arange(signature.num_outputs), np.arange(outputs)
        axes.append(Axis("", *numbers, (here, 2 * outputs), is_named=False))
    return [axis for axis in axes if not np.array_equal(axis.source, np.arange(len(axis.there)))]


def _output_names(labels: ModelSignature | Graph) -> AnyArray:
    """What each output stands for: of two classes, one says the difference."""
    names = [*map(str, labels.class_names or range(labels.num_classes))]
    return np.array([" or ".join(names)] if labels.task == "binary" else names)


def places_of(
    config: Config, model: AnyModel, moved: Sequence[Axis]
) -> dict[str, dict[int, Int64Array]]:
    """By weight and dimension, the place of each of its indices in the run; −1: none."""
    places: dict[str, dict[int, Int64Array]] = {}
    for axis in moved:
        doubled, source = _shapes(config, *axis.doubled), axis.source
        for name, weight in model.state_dict().items():
            shape = doubled.get(name, ())
            if len(shape) != weight.dim():  # whatever it counts: it begins fresh
                places.setdefault(name, {})[0] = np.full(len(weight), -1)
                continue
            for dim, (before, after) in enumerate(zip(weight.shape, shape, strict=True)):
                if after == before:
                    continue
                blocks, rest = divmod(before, len(source))  # such as heads, each of all outputs
                indices = np.full(before, -1)
                if rest == 0 and after == 2 * before:
                    starts = np.arange(blocks)[:, None] * len(axis.there)
                    indices = np.where(source < 0, -1, starts + source).ravel()
                places.setdefault(name, {})[dim] = indices
    return places


def placed(given: Tensor, fresh: Tensor, places: dict[int, Int64Array]) -> tuple[Tensor, Tensor]:
    """A weight of the run at the places of its names, and which of its values are the run's."""
    is_taken = torch.ones(fresh.shape, dtype=torch.bool)
    for dim, source in places.items():
        index = torch.from_numpy(source)
        shape = [-1 if at == dim else 1 for at in range(fresh.dim())]
        is_taken &= (index >= 0).view(shape)
        given = given.index_select(dim, index.clamp(min=0))
    return torch.where(is_taken, given, fresh) if is_taken.any() else fresh, is_taken


def _shapes(config: Config, schema: GraphSchema, num_outputs: int) -> dict[str, torch.Size]:
    """The shapes of a model's weights, by name."""
    with torch.device("meta"):
        model = build_model(config.model, schema, num_outputs)
    return {name: weight.shape for name, weight in model.state_dict().items()}


def _shape(shape: torch.Size | None) -> str:
    return "absent" if shape is None else str(list(shape))
