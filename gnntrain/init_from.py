"""The first weights of a new run, taken from the best model of another: `trainer.init_from`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gnntrain.config import Config, from_dict
from gnntrain.config.problems import shown
from gnntrain.data.graph import Graph, NodeType
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.errors import UserError
from gnntrain.models import AnyModel, build_model
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.text import shown_path
from gnntrain.run_store import model_signature, refuse_other_graph
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
    _check_graph(run, graph, config)
    with torch.device("meta"):  # its shapes alone
        model = build_model(config.model, graph.schema, graph.num_outputs)
    _matching(config, run, model, _best(run))
    return config


def take_weights(config: Config, model: AnyModel) -> InitialWeights | None:
    """Give a new model the weights of the run `trainer.init_from`; None: it is not set.

    Weights of the same name and shape are taken. The output layer stays random if its shapes
    differ.

    Args:
        config: The result of `resolved_source`.
        model: With random weights, equal on all ranks.

    Raises:
        UserError: The run is missing, or other weights differ.
    """
    if config.trainer.init_from is None:
        return None
    run = RunDirectory.open(config.trainer.init_from)
    state = _best(run)
    taken = _matching(config, run, model, state)
    model.load_state_dict(taken, strict=False)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    return InitialWeights(
        run=str(run.path),
        epoch=epoch_of(state, run.best_checkpoint()),
        num_taken=sum(size for name, size in sizes.items() if name in taken),
        num_parameters=sum(sizes.values()),
    )


def _best(run: RunDirectory) -> State:
    return load_checkpoint(run.best_checkpoint())


def _check_graph(run: RunDirectory, graph: Graph, config: Config) -> None:
    """Refuse other types or another number of features; warn of other names or another scale."""
    dataset = config.dataset
    saved = from_dict(run.config(), saved=True)
    signature = model_signature(run, saved.dataset)
    refuse_other_graph(
        signature,
        graph,
        subject=f"trainer.init_from={run.shown}: its model",
        learns_rows=config.model.is_hetero,
        exactly=True,
    )
    by_type = dict(signature.preprocessing_by_type or {})
    if signature.preprocessing is not None:
        by_type[graph.target] = signature.preprocessing
    for node_type, made_by in by_type.items():
        names = graph.nodes[node_type].feature_names
        if made_by.has_names and names is not None:
            _tell_other_names(run, node_type if graph.is_hetero else None, made_by, names)
    there, here = (getattr(given, "standardize", False) for given in (saved.dataset, dataset))
    if there != here:
        _log.warning(
            "trainer.init_from=%s: its model was trained with dataset.standardize=%s, this one is "
            "with %s: the weights are for features of another scale",
            run.shown,
            shown(there),
            shown(here),
        )


def _tell_other_names(
    run: RunDirectory, node_type: NodeType | None, made_by: Preprocessing, here: Sequence[str]
) -> None:
    """Warn if features of a type have other names, or another order; None: it is the only type."""
    there = made_by.feature_names
    place = next(
        (at for at, pair in enumerate(zip(there, here, strict=True)) if len({*pair}) > 1), None
    )
    if place is not None:
        _log.warning(
            "trainer.init_from=%s: its model was trained on other features%s, or in another order: "
            "feature %d is %s there and %s here",
            run.shown,
            "" if node_type is None else f" of {node_type}",
            place,
            there[place],
            here[place],
        )


def _matching(
    config: Config, run: RunDirectory, model: AnyModel, state: State
) -> dict[str, Tensor]:
    """The weights of a checkpoint that fit the model, by name."""
    given, wanted = weights_of(state, run.best_checkpoint()), model.state_dict()
    fitting = {
        name: weight
        for name, weight in given.items()
        if name in wanted and wanted[name].shape == weight.shape
    }
    own = model.output_layer
    has_output_layer = any(name.startswith(own[:1]) for name in given)  # or it has fewer layers
    differing = [
        f"{name} is {_shape(given.get(name))} there and {_shape(wanted.get(name))} here"
        for name in dict.fromkeys([*wanted, *given])
        if name not in fitting and not (has_output_layer and name.startswith(own))
    ]
    if differing:
        more = len(differing) - _NUM_SHOWN
        told = "; ".join(differing[:_NUM_SHOWN]) + (f"; and {more} more differ" * (more > 0))
        raise UserError(
            f"trainer.init_from={run.shown}: the weights are another model's: {told}.",
            f"It was trained with {', '.join(_other_keys(config, run))}.",
        )
    return fitting


def _shape(weight: Tensor | None) -> str:
    return "absent" if weight is None else str(list(weight.shape))


def _other_keys(config: Config, run: RunDirectory) -> Iterator[str]:
    """The model keys in which the run differs."""
    there = from_dict(run.config(), saved=True).model.model_dump(mode="json")
    here = config.model.model_dump(mode="json")
    if there["name"] != here["name"]:
        yield f"model={there['name']}"
        return
    for key, value in there.items():
        if value != here.get(key):
            yield f"model.{key}={shown(value)}"
