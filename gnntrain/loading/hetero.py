"""Loaders over typed graphs, and from a configuration to a rank's loaders."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnntrain import devices
from gnntrain.compute.features import LazyFeatures, as_tensor
from gnntrain.compute.selection import selected
from gnntrain.config import Config, FeaturesConfig
from gnntrain.config.types import AnyFanOuts
from gnntrain.data.graph import Graph, NodeType
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.build import num_loader_threads
from gnntrain.loading.feature_placement import PinnedArrays, place_and_pin, place_features
from gnntrain.loading.features import FeatureSource, InPlaceFeatures, rows_of
from gnntrain.loading.hetero_batch import HeteroBatch, HeteroValues, hetero_batch
from gnntrain.loading.hotness import dry_epochs
from gnntrain.loading.loader import Loader, SampledLoader, SeedPlan, WholeGraphLoader, in_edges
from gnntrain.loading.placement import Placement, Sizes, measured_memory, place
from gnntrain.loading.sharded import MachineRows
from gnntrain.sampling.base import Int64Array, SampleKey
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.hetero import (
    FanOuts,
    HeteroBlock,
    HeteroSampler,
    HeteroSubgraph,
    resolved_fan_outs,
)
from gnntrain.sampling.registry import hetero_sampler_class

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange

_HOST = torch.device("cpu")


class HeteroLoader(SampledLoader[HeteroSubgraph, HeteroBatch]):
    """Samples the mini-batches of a typed graph, in host memory.

    Args:
        values: Targets and degrees.
        features: Source of the feature rows of each node type that has some.
        sampler, plan, threads, prefetch, device: See `SampledLoader`.
        needs: The fields that the model reads.
    """

    def __init__(
        self,
        values: HeteroValues,
        features: Mapping[NodeType, FeatureSource],
        sampler: HeteroSampler,
        plan: SeedPlan,
        *,
        needs: BlockNeeds,
        threads: int = 1,
        prefetch: int = 2,
        device: torch.device = _HOST,
    ) -> None:
        super().__init__(
            sampler, plan, made_on=_HOST, threads=threads, prefetch=prefetch, device=device
        )
        self._values = values
        self._features = features
        self._needs = needs

    def fill(
        self, subgraph: HeteroSubgraph, num_counted: int, global_batch_size: int
    ) -> HeteroBatch:
        """See `SampledLoader.fill`."""
        return hetero_batch(
            self._values,
            self._features,
            subgraph,
            self._needs,
            num_counted=num_counted,
            global_batch_size=global_batch_size,
            device=self.device,
        )

    def take_reads(self) -> tuple[int, int]:
        """See `Loader.take_reads`."""
        reads = [source.take_reads() for source in self._features.values()]
        return sum(hits for hits, _ in reads), sum(number for _, number in reads)


class HeteroFullGraphLoader(WholeGraphLoader[HeteroBatch]):
    """Full-graph training on a typed graph.

    Args:
        graph: The graph.
        targets: By node of the target type, see `Task.targets`.
        features: Source of the feature rows of each node type that has some.
        plan: The seeds of the rank.
        num_layers, needs: See `FullGraphLoader`.
        device: Where the model computes.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Tensor,
        features: Mapping[NodeType, FeatureSource],
        plan: SeedPlan,
        *,
        num_layers: int,
        needs: BlockNeeds,
        device: torch.device = _HOST,
    ) -> None:
        super().__init__(plan)
        self._copies_features = needs.edge_index
        sizes = graph.schema.num_nodes
        self._batch = HeteroBatch.of(
            {name: torch.arange(size, device=device) for name, size in sizes.items()},
            {name: source.select() for name, source in features.items()},
            y=targets[self._seeds].to(device),
            target=graph.target,
            batch_size=len(self._seeds),
            blocks=(whole_graph(graph, device),) * num_layers,
            seed_rows=self._seeds.to(device),
            num_counted=self._num_counted,
            global_batch_size=len(plan.seeds),
        )
        if needs.edge_index:
            _ = self._batch.x_dict, self._batch.edge_index_dict  # made once, not in each epoch

    def _fresh(self) -> HeteroBatch:
        batch = self._batch
        if self._copies_features:
            batch = copy.copy(batch)
            for store in batch.node_stores:
                store["x"] = store["x"].clone() if "x" in store else None
        return batch


def whole_graph(graph: Graph, device: torch.device = _HOST) -> HeteroBlock:
    """All in-edges of all nodes; on the CPU the store's mapped pages."""
    sizes = graph.schema.num_nodes
    blocks = {}
    for name, edges in graph.edges.items():
        block = in_edges(edges.indptr, edges.indices, None, 0, sizes[name[2]])
        blocks[name] = replace(block, num_src=sizes[name[0]]).to(device)
    return HeteroBlock(blocks, num_dst=sizes, num_src=sizes)


class HeteroLoaderBuilder:
    """Makes one rank's loaders over a typed graph: what `LoaderBuilder` does for one type.

    The CPU draws, also for a GPU.

    Args:
        config: The whole configuration.
        graph: The graph.
        context: This rank.
        needs: The fields that the model reads.
        plan: The training seeds.
        targets: By node of the target type, see `Task.targets`.
        exchange: See `LoaderBuilder`.

    Attributes:
        kernels: See `LoaderBuilder`.
    """

    def __init__(
        self,
        config: Config,
        graph: Graph,
        context: DistributedContext,
        needs: BlockNeeds,
        plan: SeedPlan,
        targets: Tensor,
        exchange: Exchange | None = None,
    ) -> None:
        self._config = config
        self.kernels = selected(context.device.type)
        self._graph = graph
        self._context = context
        self._needs = needs
        self._plan = plan
        self._exchange = exchange
        self._targets = targets
        self._why_sharded: tuple[str, ...] = ()
        self._pinned = PinnedArrays()
        self._samplers: dict[tuple[object, ...], HeteroSampler] = {}
        self._rows = None if exchange is None else self._machine_rows(exchange)
        if self._rows is not None:
            self._rows.serve()

    def loader(self, plan: SeedPlan, fan_outs: AnyFanOuts) -> HeteroLoader:
        """Mini-batches of the seeds of `plan`.

        Args:
            plan: The seeds.
            fan_outs: As `sampler.fan_outs`.
        """
        config, device = self._config.sampler, self._context.device
        on_gpu = devices.is_gpu(device)
        overlaps = on_gpu or self._exchange is not None or self._context.num_machines > 1
        threads = num_loader_threads(config, torch.get_num_threads(), overlaps=overlaps)
        # Without streams torch expects one thread to use a GPU (MPS).
        has_one_queue = on_gpu and not devices.has_streams(device)
        return HeteroLoader(
            self.values,
            self.features,
            self.sampler(fan_outs),
            plan,
            needs=self._needs,
            threads=0 if has_one_queue else threads,
            prefetch=config.prefetch,
            device=device,
        )

    def training_loader(self) -> Loader:
        """Mini-batches of the training seeds, or the full graph."""
        if self._config.sampler.name == "neighbor":
            return self.loader(self._plan, self._config.sampler.fan_outs)
        return self.whole_graph_loader(self._plan)

    def whole_graph_loader(self, plan: SeedPlan) -> HeteroFullGraphLoader:
        """The whole graph as one batch, with the seeds of `plan`."""
        return HeteroFullGraphLoader(
            self._graph,
            self._targets,
            self._features_on_device(),
            plan,
            num_layers=self._config.model.num_layers,
            needs=self._needs,
            device=self._context.device,
        )

    def sampler(self, fan_outs: AnyFanOuts) -> HeteroSampler:
        """One sampler for all loaders with these fan-outs: they share its working memory."""
        by_type = self._fan_outs_by_type(fan_outs)
        key = tuple(by_type.values())
        if key not in self._samplers:
            self._samplers[key] = hetero_sampler_class(self.backend)(
                self._graph.fused,
                self._graph.target,
                by_type,
                scope=self._config.sampler.fan_out_scope,
                replace=self._config.sampler.replace,
            )
        return self._samplers[key]

    def _fan_outs_by_type(self, given: AnyFanOuts) -> FanOuts:
        # Evaluation's alone may be of more hops than the model has layers.
        length = self._config.model.num_layers if isinstance(given, Mapping) else len(given)
        return resolved_fan_outs(given, self._graph.schema, length)

    @property
    def values(self) -> HeteroValues:
        """The source of the batches' targets and degrees."""
        return HeteroValues(self._graph, self._targets)

    @property
    def is_sharded(self) -> bool:
        """See `LoaderBuilder.is_sharded`."""
        return self._exchange is not None

    @property
    def backend(self) -> str:
        """The name of the sampler."""
        asked = self._config.sampler.backend
        return "numba" if asked == "auto" else asked

    @property
    def why_placed(self) -> tuple[str, ...]:
        """See `LoaderBuilder.why_placed`."""
        placement: Placement | None = self.__dict__.get("_placement")
        return self._why_sharded if placement is None else placement.why

    @cached_property
    def features(self) -> dict[NodeType, FeatureSource]:
        """The rows of each node type with features, where the model reads them. Collective."""
        if self._rows is not None:
            keys, context = self._config.features, self._context
            sources, self._why_sharded = self._rows.sources(keys, self._presampled, context)
            return sources
        placement, context, pinned = self._placement, self._context, self._pinned.rows
        rows = {name: rows_of(self._graph.nodes[name]) for name in self._types_with_features}
        if placement is None:
            return {name: InPlaceFeatures(LazyFeatures(own), _HOST) for name, own in rows.items()}
        return {
            name: place_features(own, placement, context, None, pinned.get(name))
            for name, own in rows.items()
        }

    @property
    def _types_with_features(self) -> list[NodeType]:
        return [name for name, width in self._graph.schema.num_features.items() if width]

    def _machine_rows(self, exchange: Exchange) -> MachineRows:
        """See `LoaderBuilder`."""
        return MachineRows.of_ranges(self._graph, exchange)

    def _presampled(self, num_epochs: int) -> Iterator[Mapping[NodeType, Tensor]]:
        for subgraph in dry_epochs(self._draw, self._plan, num_epochs):
            yield subgraph.nodes

    def _draw(self, seeds: Int64Array, key: SampleKey) -> HeteroSubgraph:
        """The nodes of a training batch."""
        return self.sampler(self._config.sampler.fan_outs).sample(as_tensor(seeds), key)

    def _features_on_device(self) -> dict[NodeType, FeatureSource]:
        """The same where a step over the whole graph reads them: all in the device's memory."""
        device = self._context.device
        if self._exchange is not None:
            rows = {t: rows_of(self._graph.nodes[t]) for t in self._types_with_features}
            return {
                t: InPlaceFeatures(LazyFeatures(own.to(device)), device) for t, own in rows.items()
            }
        return {
            name: InPlaceFeatures(LazyFeatures(source.select().rows.to(device)), device)
            if source.waits
            else source
            for name, source in self.features.items()
        }

    @cached_property
    def _placement(self) -> Placement | None:
        """The placement of the rows for a GPU; None: a CPU reads the store. Collective."""
        if not devices.is_gpu(self._context.device) or self._exchange is not None:
            return None
        asked = self._config.features.placement
        features = FeaturesConfig(placement=asked, cache_bytes=0)  # no cache: all rows or none
        choose = partial(
            place,
            self._sizes(),
            features=features,
            samples_on_gpu=False,
            reads_host=self.kernels.reads_host,
        )
        memory = replace(measured_memory(self._context), has_peers=False)
        placement, self._pinned = place_and_pin(self._graph, choose, memory, self._context)
        return placement

    def _sizes(self) -> Sizes:
        nodes = self._graph.nodes.values()
        return Sizes(
            small=0,
            topology=0,
            features=sum(given.features.nbytes for given in nodes),
            num_nodes=sum(map(len, nodes)),
        )
