"""The first weights of a new run, taken from the best model of another: `trainer.init_from`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnntrain.config import Config, from_dict
from gnntrain.config.problems import shown
from gnntrain.data.graph import AnyArray, Graph, GraphSchema, Int64Array, NodeType
from gnntrain.data.summary import first_names
from gnntrain.errors import UserError
from gnntrain.models import AnyModel, build_model
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.text import shown_path
from gnntrain.run_store import (
    ModelSignature,
    model_signature,
    nodes_differ,
    recorded_store,
    refuse_other_nodes,
    refuse_other_types,
)
from gnntrain.training.checkpoint import State, epoch_of, load_checkpoint, weights_of

_NUM_SHOWN = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InitialWeights:
    """The initial weights of a model, taken from a run.

    Attributes:
        run: Directory of the run they come from.
        epoch: Its best epoch.
        num_taken: Number of parameters taken from it.
        num_parameters: Number of parameters of the model; the others are random.
    """

    run: str
    epoch: int
    num_taken: int
    num_parameters: int

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
    if config.trainer.init_from is None:
        return config
    run = RunDirectory.open(config.trainer.init_from)
    source = {"init_from": str(run.path)}
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update=source)})
    signature, there = _signature(run, graph)
    datasets = from_dict(run.config(), saved=True).dataset, config.dataset
    was, now = (getattr(dataset, "standardize", False) for dataset in datasets)
    if was != now:
        _log.warning(
            "trainer.init_from=%s: its model was trained with dataset.standardize=%s, this one is "
            "with %s: the weights are for features of another scale",
            run.shown,
            shown(was),
            shown(now),
        )
    _weights(config, run, signature, there, load_checkpoint(run.best_checkpoint()))
    moved = [str(axis) for axis in _moved(config, run, signature, there, graph) if axis.is_named]
    if moved:
        _log.warning("trainer.init_from=%s: matched by name: %s", run.shown, ", ".join(moved))
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
    signature, there = _signature(run, graph)
    state = load_checkpoint(run.best_checkpoint())
    given = _weights(config, run, signature, there, state)
    places = places_of(config, model, _moved(config, run, signature, there, graph))
    weights, num_taken = {}, 0
    parameters = {name: weight.numel() for name, weight in model.named_parameters()}
    for name, fresh in model.state_dict().items():
        if name not in given:  # such as a residual's, where its widths are equal in the run
            continue
        weights[name], is_taken = placed(given[name], fresh.cpu(), places.get(name, {}))
        num_taken += int(is_taken.sum()) if name in parameters else 0
    model.load_state_dict(weights, strict=False)
    return InitialWeights(
        run=str(run.path),
        epoch=epoch_of(state, run.best_checkpoint()),
        num_taken=num_taken,
        num_parameters=sum(parameters.values()),
    )


@dataclass(frozen=True)
class Axis:
    """What a dimension of some weights counts: features or rows of a node type, or outputs.

    Attributes:
        label: What it is called in messages.
        there: The names in the run.
        here: The names in the graph.
        source: By place here the place in the run, −1 for what begins fresh.
        doubled: The inputs and outputs here with twice as many of these: the dimensions of a model
            so built that differ are those that count them.
        is_named: Whether names are known.
    """

    label: str
    there: AnyArray
    here: AnyArray
    source: Int64Array
    doubled: tuple[GraphSchema, int]
    is_named: bool

    @property
    def is_complete(self) -> bool:
        """Whether all are there in the run."""
        return bool((self.source >= 0).all())

    def __str__(self) -> str:
        new = self.here[self.source < 0]
        gone = np.delete(self.there, self.source[self.source >= 0])
        told = []
        for what, names in (("new", new), ("left out", gone)):
            texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names[:20]]
            told += [f"{what}: {first_names(texts)}"] if texts else []
        taken = f"{len(self.here) - len(new):,} of {len(self.here):,} {self.label}"
        return f"{taken} ({'; '.join(told) or 'in another order'})"


def _signature(run: RunDirectory, graph: Graph) -> tuple[ModelSignature, GraphSchema]:
    """The inputs and outputs of a run's model, whose types must be those of the graph."""
    signature = model_signature(run, from_dict(run.config(), saved=True).dataset)
    subject = f"trainer.init_from={run.shown}: its model"
    return signature, refuse_other_types(signature, graph, subject=subject, exactly=True)


def _moved(
    config: Config, run: RunDirectory, signature: ModelSignature, there: GraphSchema, graph: Graph
) -> list[Axis]:
    """The features, rows and outputs that are not at their places in the run.

    Raises:
        UserError: There are others, whose names are not known.
    """
    here, outputs = graph.schema, graph.num_outputs
    learns_rows = config.model.is_hetero
    axes = []
    for name in here.node_types:
        of_type = f" of {name}" if graph.is_hetero else ""
        made_by, names = signature.made_by(name), graph.nodes[name].feature_names
        widths = {there.num_features[name], here.num_features[name]}
        if 0 not in widths and made_by is not None and made_by.has_names and names is not None:
            more = {**here.num_features, name: 2 * here.num_features[name]}
            doubled = replace(here, num_features=more), outputs
            axes.append(_axis(f"features{of_type}", made_by.feature_names, names, doubled))
        elif (
            learns_rows and (rows := learnt_rows(run, signature, graph, name, outputs)) is not None
        ):
            axes.append(rows)
        else:
            subject = f"trainer.init_from={run.shown}: its model"
            refuse_other_nodes(
                signature, there, graph, name, subject=subject, learns_rows=learns_rows
            )
    doubled = here, 2 * outputs
    if (signature.class_names, graph.class_names) != (None, None):
        what = "targets" if graph.task == "continuous" else "classes"
        axes.append(_axis(what, _output_names(signature), _output_names(graph), doubled))
    elif signature.num_outputs != outputs:
        fresh = np.full(outputs, -1)
        axes.append(Axis("", np.arange(signature.num_outputs), fresh, fresh, doubled, False))
    return [axis for axis in axes if not np.array_equal(axis.source, np.arange(len(axis.there)))]


def _output_names(labels: ModelSignature | Graph) -> list[str]:
    """What each output stands for: of two classes, one says the difference."""
    names = [*map(str, labels.class_names or range(labels.num_classes))]
    return [" or ".join(names)] if labels.task == "binary" else names


def learnt_rows(
    run: RunDirectory, signature: ModelSignature, graph: Graph, name: NodeType, num_outputs: int
) -> Axis | None:
    """The rows that a run's model has learnt for the nodes of a type, found by their ids.

    None: the type has features, or the same nodes in the same order; or no ids are known, since the
    run's store is no longer there.
    """
    here = graph.schema
    assert signature.schema is not None
    if {here.num_features[name], signature.schema.num_features[name]} != {0}:
        return None
    record = run.store_record()
    store = None if record is None else recorded_store(record)
    if store is None or not nodes_differ(signature, graph, name):
        return None
    both = store.nodes[name], graph.nodes[name]
    kinds = {nodes.ids.dtype.kind for nodes in both if nodes.ids is not None}
    is_unknown = any(nodes.ids is None for nodes in both) and kinds != {"i"}
    if len(both[1]) != here.num_nodes[name] or is_unknown:
        return None
    # Ids 0, 1, … are not stored.
    ids = [np.arange(len(nodes)) if nodes.ids is None else nodes.ids for nodes in both]
    doubled = replace(here, num_nodes={**here.num_nodes, name: 2 * here.num_nodes[name]})
    label = f"learnt rows of {name}" if graph.is_hetero else "learnt rows"
    return _axis(label, ids[0], ids[1], (doubled, num_outputs))


def _axis(
    label: str,
    there: Sequence[str] | AnyArray,
    here: Sequence[str] | AnyArray,
    doubled: tuple[GraphSchema, int],
) -> Axis:
    before, after = np.asarray(there), np.asarray(here)
    if before.dtype.kind != after.dtype.kind:  # ids that all were numbers, and now are texts
        before, after = before.astype(bytes), after.astype(bytes)
    order = np.argsort(before, kind="stable")
    found = order[np.minimum(np.searchsorted(before, after, sorter=order), len(before) - 1)]
    source = np.where(before[found] == after, found, -1)
    return Axis(label, before, after, source, doubled, True)


def places_of(
    config: Config, model: AnyModel, moved: Sequence[Axis]
) -> dict[str, dict[int, Int64Array]]:
    """By weight and dimension, the place of each of its indices in the run; −1: none."""
    places: dict[str, dict[int, Int64Array]] = {}
    for axis in moved:
        doubled, size = _shapes(config, *axis.doubled), len(axis.here)
        for name, weight in model.state_dict().items():
            shape = doubled.get(name, ())
            if len(shape) != weight.dim():  # whatever it counts: it begins fresh
                places.setdefault(name, {})[0] = np.full(len(weight), -1)
                continue
            for dim, (before, after) in enumerate(zip(weight.shape, shape, strict=True)):
                if after == before:
                    continue
                blocks, rest = divmod(before, size)  # such as heads, each of all outputs
                source = np.full(before, -1)
                if rest == 0 and after == 2 * before:
                    starts = np.arange(blocks)[:, None] * len(axis.there)
                    source = np.where(axis.source < 0, -1, starts + axis.source).ravel()
                places.setdefault(name, {})[dim] = source
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


def _weights(
    config: Config,
    run: RunDirectory,
    signature: ModelSignature,
    there: GraphSchema,
    state: State,
) -> dict[str, Tensor]:
    """The weights of a checkpoint, which must be those of the model for the graph of its run."""
    given = weights_of(state, run.best_checkpoint())
    wanted = _shapes(config, there, signature.num_outputs)
    differing = [
        f"{name} is {_shape(given.get(name))} there and {_shape(wanted.get(name))} here"
        for name in dict.fromkeys([*wanted, *given])
        if name not in given or given[name].shape != wanted.get(name)
    ]
    if differing:
        more = len(differing) - _NUM_SHOWN
        told = "; ".join(differing[:_NUM_SHOWN]) + (f"; and {more} more differ" * (more > 0))
        its = from_dict(run.config(), saved=True).model.model_dump(mode="json")
        here = config.model.model_dump(mode="json")
        keys = [f"model.{key}={shown(its[key])}" for key in its if its[key] != here.get(key)]
        if its["name"] != here["name"]:
            keys = [f"model={its['name']}"]
        raise UserError(
            f"trainer.init_from={run.shown}: the weights are another model's: {told}.",
            f"It was trained with {', '.join(keys)}."
            if keys
            else "An older gnntrain trained it: train it anew.",
        )
    return given


def _shape(weight: Tensor | torch.Size | None) -> str:
    shape = weight.shape if isinstance(weight, Tensor) else weight
    return "absent" if shape is None else str(list(shape))
