"""The interface of samplers: a sampler takes seeds and a key, and returns a sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gnntrain.config.problems import did_you_mean
from gnntrain.config.schema import SAMPLER_CLASSES
from gnntrain.config.types import AnyFanOuts
from gnntrain.data.graph import EdgeType, FusedCSC, GraphSchema, NodeType
from gnntrain.errors import GnntrainError, RunError, UserError
from gnntrain.plugins import SAMPLERS, load_plugin, told
from gnntrain.sampling.block import Sample

DEFAULT = "default"
"""Stands for all edge types without fan-outs of their own."""

FanOutScope = Literal["relation", "node"]
"""See `Sampler`."""

FanOuts = Mapping[EdgeType, tuple[int, ...]]
"""In-neighbours of each edge type to draw for a node, the hop next to the seeds first."""


@dataclass(frozen=True, slots=True)
class SampleKey:
    """The key of a draw: with a hop and a destination node it determines the drawn in-neighbours.

    The draw depends neither on the thread, nor on the rank, nor on the other nodes of the batch.

    Attributes:
        by_node: One draw a node, the same in every hop with the same fan-out: what a model sees of
            a node then does not depend on the hop that found it.
    """

    seed: int
    epoch: int
    step: int
    by_node: bool = False


NO_TARGETS = torch.empty(0)
"""Of seeds that are sampled alone, for no example."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """What a task asks a sampler for: the nodes whose outputs a step's examples need.

    Attributes:
        nodes: By node type, integers `[num_seeds]`, ids within the type.
        targets: The examples' targets, `[num_examples]` or `[num_examples, …]`; samplers do
            not read them.
        pairs: int64 `[2, num_examples]`, positions in `nodes` of the two ends of each example that
            is an edge; None: each seed is an example, in order.
    """

    nodes: Mapping[NodeType, Tensor]
    targets: Tensor
    pairs: Tensor | None = None


class Sampler(ABC):
    """Draws the neighbourhood of seed nodes.

    A package adds a sampler by an entry point of the group `gnntrain.samplers` that names a
    subclass; `sampler.backend` chooses it by the entry point's name. See `sampler_class`.

    Args:
        edges: The in-edges of all types. They are only read.
        fan_outs: In-neighbours to draw for a node, by edge type, at least 1; −1 takes all.
        scope: Whether a fan-out is for the in-edges of a node of one edge type (relation), or of
            all edge types together (node): all edge types into a node type then have the same.
        replace: Draw with replacement: where there are in-edges, exactly the fan-out is taken.
        edge_ids: Also return each edge's position among those of its type.

    Attributes:
        on_gpu: Whether it samples on a GPU. It is made for graphs of one edge type alone, and the
            arrays of `edges` are then tensors: `indptr` in the GPU's memory, `indices` there or in
            pinned host memory. Otherwise they are NumPy arrays, mapped from the store.
        thread_safe: Whether `sample` may be called in background threads, several at a time.
    """

    on_gpu: ClassVar[bool] = False
    thread_safe: ClassVar[bool] = True

    @abstractmethod
    def __init__(
        self,
        edges: FusedCSC,
        fan_outs: FanOuts,
        *,
        scope: FanOutScope = "relation",
        replace: bool = False,
        edge_ids: bool = False,
    ) -> None: ...

    @abstractmethod
    def sample(self, seeds: Seeds, key: SampleKey) -> Sample:
        """Draw the neighbourhood of `seeds`.

        Args:
            seeds: Of its fields a sampler reads `nodes`.
            key: Key of the draw. Equal seeds and keys give equal samples.
        """


def sampler_class(name: str) -> type[Sampler]:
    """The class behind `sampler.backend=name`: one of ours, or one of an installed package.

    Imports its module (for `triton` also Triton).

    Raises:
        UserError: No sampler has that name, it cannot be imported, or it is no `Sampler`.
    """
    if name in SAMPLER_CLASSES:
        module, _, attribute = SAMPLER_CLASSES[name].partition(":")
        sampler = getattr(import_module(module), attribute)
    else:
        sampler = load_plugin(SAMPLERS, name)
    if not (isinstance(sampler, type) and issubclass(sampler, Sampler)):
        raise UserError(
            f"sampler {name!r} is no subclass of {Sampler.__name__}",
            f"its entry point must name a subclass of {Sampler.__module__}.{Sampler.__name__}",
        )
    return sampler


def make_sampler(name: str, edges: FusedCSC, fan_outs: FanOuts, **options: bool | str) -> Sampler:
    """The sampler of this name, see `sampler_class`, with arguments of `Sampler`; RunError where a
    package's cannot be made."""
    kind: Any = sampler_class(name)
    try:
        sampler: Sampler = kind(edges, fan_outs, **options)
    except Exception as error:  # another package's code may raise any
        if name in SAMPLER_CLASSES or isinstance(error, GnntrainError):
            raise
        place = f"{kind.__module__}.{kind.__name__}"
        raise RunError(
            f"The sampler {name!r} ({place}) cannot be made: {told(error)}.",
            f"Its constructor must take the arguments of {Sampler.__module__}.{Sampler.__name__}.",
        ) from error
    return sampler


def refuse_wrong_sample(
    sampler: Sampler, sample: object, seeds: Seeds, schema: GraphSchema
) -> None:
    """Raise a UserError where what a package's sampler has drawn is no `Sample` of these seeds."""
    wrong = "" if isinstance(sample, Sample) else f"a {type(sample).__name__}"
    if isinstance(sample, Sample):
        for name, own in seeds.nodes.items():
            nodes = sample.nodes.get(name, own[:0])
            if not torch.equal(nodes[: len(own)], own.to(nodes)):
                wrong = f"nodes of type {name} that do not begin with the seeds"
        for name, nodes in sample.nodes.items():
            ends = [*map(int, nodes.aminmax())] if len(nodes) else []
            if any(not 0 <= end < schema.num_nodes[name] for end in ends):
                wrong = f"nodes {ends[0]} to {ends[1]} of type {name}, "
                wrong += f"of which the graph has {schema.num_nodes[name]:,}"
    if wrong:
        raise UserError(
            f"the sampler {type(sampler).__module__}.{type(sampler).__name__} gave {wrong}",
            "its `sample` must return a gnntrain.sampling.block.Sample, as that class says",
        )


def resolved_fan_outs(
    fan_outs: AnyFanOuts, schema: GraphSchema, num_layers: int, key: str = "sampler.fan_outs"
) -> FanOuts:
    """The fan-outs of each edge type of a graph.

    Args:
        fan_outs: One list for all edge types; or lists by edge type, and `default` for all others.
            An edge type is `author/writes/paper`, or `writes` where no other has this relation.
        schema: The types of the graph.
        num_layers: The length of each list.
        key: The key that gives them, for messages.

    Raises:
        UserError: No edge type has such a name, or several have it, or it stands twice;
            an edge type has no fan-outs; or a list is of another length.
    """
    by_name = fan_outs if isinstance(fan_outs, Mapping) else {DEFAULT: fan_outs}
    for name, by_hop in by_name.items():
        if len(by_hop) != num_layers:
            raise UserError(
                f"{key}: the fan-outs of {name} are {list(by_hop)}, not one number a layer.",
                f"The model has {num_layers} layers.",
            )
    names: dict[EdgeType, str] = {}
    for name in by_name:
        if name == DEFAULT:
            continue
        edge_type = _edge_type(name, schema, key)
        if edge_type in names:
            raise UserError(
                f"{key} has {'/'.join(edge_type)} twice: as {names[edge_type]} and as {name}.",
                "Give one of them.",
            )
        names[edge_type] = name
    lacking = [edge for edge in schema.edge_types if edge not in names and DEFAULT not in by_name]
    if lacking:
        raise UserError(
            f"{key} has no fan-outs for {', '.join(map('/'.join, lacking))}.",
            f"Add theirs, or {DEFAULT}, which stands for all others.",
        )
    return {edge: tuple(by_name[names.get(edge, DEFAULT)]) for edge in schema.edge_types}


def _edge_type(name: str, schema: GraphSchema, key: str) -> EdgeType:
    """The edge type of this name, or of this relation."""
    found = [edge for edge in schema.edge_types if name in ("/".join(edge), edge[1])]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(map("/".join, found))
        raise UserError(
            f"{key}: {name} is the relation of {len(found)} edge types.",
            f"Write one of {several}.",
        )
    edge_types = ["/".join(edge) for edge in schema.edge_types]
    known = [*edge_types, *(edge[1] for edge in schema.edge_types), DEFAULT]
    raise UserError(
        f"{key}: {name} is no edge type of the graph.",
        did_you_mean(name, known, f"The edge types are {', '.join(edge_types)}."),
    )
