"""Loaders over typed graphs, and from a configuration to a rank's loaders."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor

from gnntrain import devices
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.selection import selected
from gnntrain.config import Config, FeaturesConfig
from gnntrain.config.types import AnyFanOuts
from gnntrain.data.graph import Graph, NodeType
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.build import num_loader_threads
from gnntrain.loading.feature_placement import PinnedArrays, place_and_pin, place_features
from gnntrain.loading.features import FeatureSource, InPlaceFeatures, rows_of
from gnntrain.loading.hetero_batch import HeteroBatch, HeteroValues, hetero_batch
from gnntrain.loading.loader import Loader, SampledLoader, SeedPlan, WholeGraphLoader, in_edges
from gnntrain.loading.placement import Placement, Sizes, measured_memory, place
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.hetero import HeteroBlock, HeteroSampler, HeteroSubgraph, resolved_fan_outs
from gnntrain.sampling.registry import hetero_sampler_class

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
    ) -> None:
        self._config = config
        self.kernels = selected(context.device.type)
        self._graph = graph
        self._context = context
        self._needs = needs
        self._plan = plan
        self._values = HeteroValues(graph, targets)
        self._pinned = PinnedArrays()
        self._samplers: dict[tuple[object, ...], HeteroSampler] = {}

    def loader(self, plan: SeedPlan, fan_outs: AnyFanOuts) -> HeteroLoader:
        """Mini-batches of the seeds of `plan`.

        Args:
            plan: The seeds.
            fan_outs: As `sampler.fan_outs`.
        """
        config, device = self._config.sampler, self._context.device
        on_gpu = devices.is_gpu(device)
        overlaps = on_gpu or self._context.num_machines > 1
        threads = num_loader_threads(config, torch.get_num_threads(), overlaps=overlaps)
        # Without streams torch expects one thread to use a GPU (MPS).
        has_one_queue = on_gpu and not devices.has_streams(device)
        return HeteroLoader(
            self._values,
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
        return HeteroFullGraphLoader(
            self._graph,
            self._values.targets,
            self._features_on_device(),
            self._plan,
            num_layers=self._config.model.num_layers,
            needs=self._needs,
            device=self._context.device,
        )

    def sampler(self, fan_outs: AnyFanOuts) -> HeteroSampler:
        """One sampler for all loaders with these fan-outs: they share its working memory."""
        schema, num_layers = self._graph.schema, self._config.model.num_layers
        by_type = resolved_fan_outs(fan_outs, schema, num_layers)
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

    @property
    def backend(self) -> str:
        """The name of the sampler."""
        asked = self._config.sampler.backend
        return "numba" if asked == "auto" else asked

    @property
    def why_placed(self) -> tuple[str, ...]:
        """See `LoaderBuilder.why_placed`."""
        placement: Placement | None = self.__dict__.get("_placement")
        return () if placement is None else placement.why

    @cached_property
    def features(self) -> dict[NodeType, FeatureSource]:
        """The rows of each node type with features, where the model reads them. Collective."""
        placement, context, pinned = self._placement, self._context, self._pinned.rows
        rows = {
            name: rows_of(nodes) for name, nodes in self._graph.nodes.items() if nodes.num_features
        }
        if placement is None:
            return {name: InPlaceFeatures(LazyFeatures(own), _HOST) for name, own in rows.items()}
        return {
            name: place_features(own, placement, context, None, pinned.get(name))
            for name, own in rows.items()
        }

    def _features_on_device(self) -> dict[NodeType, FeatureSource]:
        """The same where a step over the whole graph reads them: all in the device's memory."""
        device = self._context.device
        return {
            name: InPlaceFeatures(LazyFeatures(source.select().rows.to(device)), device)
            if source.waits
            else source
            for name, source in self.features.items()
        }

    @cached_property
    def _placement(self) -> Placement | None:
        """The placement of the rows for a GPU; None: a CPU reads the store. Collective."""
        if not devices.is_gpu(self._context.device):
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
