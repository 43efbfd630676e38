"""From a configuration to a rank's loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnntrain import devices
from gnntrain.compute.selection import SAMPLER, selected
from gnntrain.config import Config, FeaturesConfig, SamplerConfig
from gnntrain.config.checks import contradictions
from gnntrain.config.types import AnyFanOuts
from gnntrain.data.graph import Graph, NodeType
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading.features import FeatureSource, WholeGraphFeatures, in_place, stored_rows
from gnntrain.loading.graph import BatchValues, GraphTensors, node_seeds
from gnntrain.loading.loader import FullGraphLoader, MakeSeeds, SampledLoader, SeedPlan
from gnntrain.loading.placement import (
    IN_STORE,
    Placement,
    Sizes,
    measured_memory,
    place,
    place_and_pin,
    place_features,
)
from gnntrain.loading.read_counts import DenseReadCounts, most_read_nodes
from gnntrain.loading.shared import SharedGraph
from gnntrain.sampling.base import Sampler, make_sampler, resolved_fan_outs, sampler_class
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.remote import RemoteSampler

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange

MOST_PADDED_EDGES = 2**22
"""Edges of a batch of the largest size beyond which padding may cost more than launches. Its rows
are fewer: each is a seed, or has an edge that found it."""


class LoaderBuilder:
    """Makes one rank's loaders over a graph, which share its tensors, its feature rows, and one
    sampler for each fan-outs. On a GPU the first loader places them: all ranks make it together.

    The graph is whole here; or machines share out its rows (`SharedGraph`); or owners hold it in
    parts and are asked for in-neighbours, rows and targets: batches are made in host memory then.

    Args:
        config, context: The whole configuration, and this rank.
        graph: The graph. In parts, its targets are the parts' labels.
        needs: The fields that the model reads.
        plan: The training examples.
        targets: By node of the target type, see `Task.targets`.
        make_seeds: See `Task.seeds`.
        uses_graph: Whether the model reads edges; else batches consist of their seeds.
        is_typed: Whether it is a model of typed graphs: the CPU draws then, also for a GPU, which
            holds all rows or none.
        exchange: Asks other machines, and answers them; None: this machine reads all rows.

    Attributes:
        kernels: What this process has selected for the rank's device, to compute and to draw.
        owners: With an exchange: who holds which nodes of each type, or their rows.
    """

    def __init__(
        self,
        config: Config,
        graph: Graph,
        context: DistributedContext,
        needs: BlockNeeds,
        plan: SeedPlan,
        targets: Tensor,
        *,
        make_seeds: MakeSeeds = node_seeds,
        uses_graph: bool = True,
        is_typed: bool = False,
        exchange: Exchange | None = None,
    ) -> None:
        self._config, self._graph, self._context = config, graph, context
        self._needs, self._plan, self._targets = needs, plan, targets
        self._make_seeds, self._uses_graph = make_seeds, uses_graph
        self.kernels = selected(context.device.type)
        self.is_typed, self.exchange = is_typed, exchange
        in_parts = isinstance(graph, PartitionedGraph)
        self._owners_draw = exchange is not None and (in_parts or config.distributed.servers > 0)
        assert self._owners_draw or not in_parts, "the owners of a graph in parts must be asked"
        self._on_gpu = devices.is_gpu(context.device)
        self._is_full = config.sampler.name == "full"
        self._samplers: dict[tuple[object, ...], Sampler] = {}
        self._shared: SharedGraph | None = None
        if exchange is not None:
            self._shared = SharedGraph(graph, exchange, context, in_parts=self._owners_draw)
            self.owners = self._shared.owners
        backend = config.sampler.backend
        is_triton = backend == "triton" and not is_typed and self._on_gpu
        if is_triton and not self.kernels.samples_on_gpu:
            why = self.kernels.replaced.get(SAMPLER, "this run computes by torch's operators alone")
            raise UserError(
                f"sampler.backend=triton cannot be used on this GPU: {why}.",
                "Leave it out: the CPU draws then.",
            )
        # Whether the GPU draws if its memory holds the edges.
        self._draws_on_gpu = False
        if not (is_typed or self._owners_draw):
            on_gpu = self.kernels.samples_on_gpu
            self._draws_on_gpu = on_gpu if backend == "auto" else sampler_class(backend).on_gpu

    # Loaders

    def loader(
        self,
        plan: SeedPlan,
        fan_outs: AnyFanOuts,
        features: Mapping[NodeType, FeatureSource] | None = None,
    ) -> SampledLoader:
        """Mini-batches of the seeds of `plan`; `fan_outs` as `sampler.fan_outs`, rows of `features`
        or of `self.features`."""
        features = self.features if features is None else features
        config, device = self._config.sampler, self._context.device
        overlaps = self._on_gpu or self.exchange is not None or self._context.num_machines > 1
        threads = num_loader_threads(config, torch.get_num_threads(), overlaps=overlaps)
        # On the CPU Triton's interpreter runs the kernels, in one thread only.
        is_interpreted = self.samples_on_gpu and not self._on_gpu
        # Without streams torch expects one thread to use a GPU (MPS).
        has_one_queue = self._on_gpu and not devices.has_streams(device)
        # All ranks must start the same gathers, also where training ends early.
        gathers = any(isinstance(source, WholeGraphFeatures) for source in features.values())
        return SampledLoader(
            self.values,
            features,
            self.sampler(fan_outs),
            plan,
            make_seeds=self._make_seeds,
            needs=self._needs,
            threads=0 if is_interpreted or has_one_queue or gathers else threads,
            prefetch=config.prefetch,
            device=device,
        )

    def training_loader(self) -> SampledLoader | FullGraphLoader:
        """Mini-batches of the training seeds, or the full graph.

        Raises:
            UserError: `trainer.cuda_graph=true`, but the GPU cannot read edges or features.
        """
        if self._is_full:
            return self.whole_graph_loader(self._plan)
        features = self.features
        if self._placement.features == "wholegraph":
            # Only training gathers so: all ranks make the same steps, but may evaluate alone.
            features = {
                name: WholeGraphFeatures(rows, self._context)
                for name, rows in stored_rows(self._graph).items()
            }
        loader = self.loader(self._plan, self._config.sampler.fan_outs, features)
        waits = any(source.waits for source in features.values())
        loader.records_steps = self._records_steps(loader.sampler, waits=waits)
        return loader

    def _records_steps(self, sampler: Any, *, waits: bool) -> bool:
        """What `trainer.cuda_graph` comes to; `waits`: the host reads features for the GPU."""
        wanted, context = self._config.trainer.cuda_graph, self._context
        can_record = hasattr(sampler, "sample_padded") and not waits
        if wanted != "auto":
            if wanted and not can_record:
                why = "; ".join(self.why_placed)
                raise UserError(
                    f"trainer.cuda_graph needs edges and features where the GPU reads them: {why}.",
                    "Leave it out, or store the features in half: dataset.feature_dtype=bfloat16.",
                )
            return wanted
        is_one = context.world_size == 1 and context.device.type == "cuda"
        # A package's sampler may pad otherwise than it samples; seeds are sent as nodes.
        is_ours = self.backend == "triton" and self._make_seeds is node_seeds
        # A plain PyG module may do anything in a step.
        is_ours = is_ours and not (self.kernels.replaced or self._needs.edge_index)
        if not (can_record and is_one and is_ours and torch.version.cuda):
            return False
        trainer = self._config.trainer.model_copy(update={"cuda_graph": True})
        problems = contradictions(self._config.model_copy(update={"trainer": trainer}))
        if any(problem.key == "trainer.cuda_graph" for problem in problems):
            return False
        num_seeds = min(self._plan.batch_size, len(self._plan.seeds))
        num_edges: int = sampler.padded_edges(num_seeds)
        return num_edges <= MOST_PADDED_EDGES

    def whole_graph_loader(self, plan: SeedPlan) -> FullGraphLoader:
        """The whole graph as one batch, with the seeds of `plan`."""
        device = self._context.device
        graph = self.graph_on_device if self._is_full else None
        is_resident = self._is_full and self._placement.features == "resident"
        return FullGraphLoader(
            graph or self._graph_on(device),
            self.features if is_resident else in_place(self._graph, device),
            plan,
            num_layers=self._config.model.num_layers,
            make_seeds=self._make_seeds,
            needs=self._needs,
        )

    # The graph and its rows, where they are read

    def _graph_on(self, device: torch.device, indices: Tensor | None = None) -> GraphTensors:
        return GraphTensors.of(
            self._graph, self._needs, device, indices=indices, targets=self._targets
        )

    @cached_property
    def graph(self) -> GraphTensors:
        """The graph's tensors where the sampler reads them."""
        if not self.samples_on_gpu:
            return self._graph_on(torch.device("cpu"))
        return self._graph_on(self._context.device, self._placement.pinned_indices)

    @property
    def values(self) -> BatchValues:
        """The source of the batches' targets, weights, degrees and norms."""
        return self._shared if self._owners_draw and self._shared is not None else self.graph

    @cached_property
    def graph_on_device(self) -> GraphTensors | None:
        """The graph's tensors where a GPU reads them, to train or to evaluate; None: the edges are
        in host memory. Collective."""
        if self.samples_on_gpu:
            return self.graph
        is_resident = self._placement.topology == "resident"
        return self._graph_on(self._context.device) if is_resident else None

    @cached_property
    def features(self) -> Mapping[NodeType, FeatureSource]:
        """The rows of each node type with features, where the model reads them. Collective."""
        placement = self._placement
        if self._shared is not None:
            keys = self._config.features
            if placement.features == "wholegraph":  # only evaluation asks the exchange
                keys = keys.model_copy(update={"cache_ratio": 0.0})
            return self._shared.features(keys, self._presampled)
        if placement is IN_STORE:
            return in_place(self._graph)
        cached = None
        if placement.features == "cached":  # of the only node type
            counts, num_nodes = DenseReadCounts(self._graph.num_nodes), self._graph.num_nodes
            num_epochs = self._config.features.presample_epochs if placement.num_cached else 0
            for nodes in self._presampled(num_epochs):
                counts.add(nodes[self._graph.target].cpu().numpy())
            most_read = most_read_nodes(counts.between, placement.num_cached, num_nodes)
            cached = torch.from_numpy(most_read)
        return {
            name: place_features(name, rows, placement, self._context, cached)
            for name, rows in stored_rows(self._graph).items()
        }

    def _presampled(self, num_epochs: int) -> Iterator[Mapping[NodeType, Tensor]]:
        """The nodes of each batch that training draws in its first epochs."""
        sampler = self.sampler(self._config.sampler.fan_outs)
        for epoch in range(1, num_epochs + 1):  # the trainer counts from 1
            for share, key in self._plan.batches(epoch):
                yield sampler.sample(self._make_seeds(share.seeds, key, self.values), key).nodes

    # The sampler

    def sampler(self, fan_outs: AnyFanOuts) -> Sampler:
        """One sampler for all loaders with these fan-outs: they share its working memory."""
        graph, config = self._graph, self._config.sampler
        # Evaluation's alone may be of more hops than the model has layers.
        is_by_type = isinstance(fan_outs, Mapping)
        length = self._config.model.num_layers if is_by_type else len(fan_outs)
        by_type = resolved_fan_outs(fan_outs, graph.schema, length)
        if not self._uses_graph:
            by_type = dict.fromkeys(by_type, ())
        key = tuple(by_type.values())
        if key in self._samplers:
            return self._samplers[key]
        options: dict[str, Any] = {"scope": config.fan_out_scope, "replace": config.replace}
        has_weight = any(edges.weight is not None for edges in graph.edges.values())
        needs = replace(self._needs, weight=has_weight and self._needs.weight)
        if self._owners_draw:
            assert self.exchange is not None
            owned = self.exchange, self.owners, graph.schema.edge_types
            sampler: Sampler = RemoteSampler(*owned, by_type, **options, needs=needs)
        else:
            edges = graph.fused
            if self.samples_on_gpu:
                on_gpu = self.graph.only_edges
                edges = replace(edges, indptr=on_gpu.indptr, indices=on_gpu.indices)
            options["edge_ids"] = needs.weight
            sampler = make_sampler(self.backend, edges, by_type, **options)
        self._samplers[key] = sampler
        return sampler

    @cached_property
    def backend(self) -> str:
        """The name of the sampler."""
        backend = "auto" if self._owners_draw else self._config.sampler.backend
        if backend != "auto":
            return backend
        return "triton" if self._draws_on_gpu and self._placement.topology != "host" else "numba"

    @property
    def samples_on_gpu(self) -> bool:
        """Whether the sampler runs on the GPU."""
        return sampler_class(self.backend).on_gpu

    # The placement

    @property
    def why_placed(self) -> tuple[str, ...]:
        """Edges' and features' placement with the reason, once a loader has placed them."""
        why = self._placement.why
        return why if self._shared is None else why[:1] + self._shared.why

    @cached_property
    def _placement(self) -> Placement:
        """The placement for a GPU, `IN_STORE` where the CPU alone reads the graph. Collective.

        In full-graph training it says what half of the GPU's memory holds of the graph.
        """
        config, features = self._config, self._config.features
        if self._owners_draw or not (self._on_gpu or self._draws_on_gpu):
            return IN_STORE
        if self.is_typed and self.exchange is not None:
            return IN_STORE
        memory = measured_memory(self._context)
        if self.is_typed or self._is_full:
            # No cache and no sharding: all rows or none.
            features = FeaturesConfig(placement=features.placement, cache_bytes=0)
            memory = replace(memory, why_no_peers="all rows or none")
        elif self.exchange is not None and features.placement != "wholegraph":
            features = FeaturesConfig(placement="memmap")  # one machine's rows are not all
        choose = partial(
            place,
            self._sizes(),
            topology="auto" if self._is_full else config.sampler.topology,
            features=features,
            samples_on_gpu=self._draws_on_gpu,
            is_full=self._is_full,
            reads_host=self.kernels.reads_host or not self._on_gpu,
        )
        return place_and_pin(self._graph, choose, memory, self._context)

    def _sizes(self) -> Sizes:
        nodes, edges, needs = self._graph.nodes, self._graph.edges.values(), self._needs
        weights = [of_type.weight for of_type in edges if of_type.weight is not None]
        return Sizes(
            small=self._targets.nbytes
            + sum(of_type.indptr.nbytes for of_type in edges)
            + 4 * self._graph.num_nodes * needs.norm
            + 4 * sum(map(len, weights)) * needs.weight,
            topology=sum(of_type.indices.nbytes for of_type in edges),
            features=sum(of_type.features.nbytes for of_type in nodes.values()),
            num_nodes=self._graph.num_nodes,
        )


def num_loader_threads(sampler: SamplerConfig, num_threads: int, *, overlaps: bool) -> int:
    """Background threads that make the batches of a rank with so many compute threads; `overlaps`:
    its cores wait for a GPU, or for other machines."""
    if sampler.threads is not None:
        return sampler.threads
    # On a single core a thread would only compete with the step, and hold a second batch in memory.
    return int(overlaps or num_threads > 1)
