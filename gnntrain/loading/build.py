"""From a configuration to a rank's loaders, their sampler and the placement of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnntrain import devices
from gnntrain.compute.features import LazyFeatures, as_tensor
from gnntrain.compute.selection import SAMPLER, selected
from gnntrain.config import Config, FeaturesConfig, SamplerConfig
from gnntrain.config.types import AnyFanOuts, same_fan_outs
from gnntrain.data.graph import Graph, NodeType
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading.feature_placement import PinnedArrays, place_and_pin, place_features
from gnntrain.loading.features import FeatureSource, InPlaceFeatures, stored_rows
from gnntrain.loading.graph import BatchValues, GraphTensors
from gnntrain.loading.hotness import (
    dry_epochs,
    hottest,
    presampled,
)
from gnntrain.loading.loader import BlockLoader, FullGraphLoader, SeedPlan
from gnntrain.loading.placement import (
    Placement,
    Sizes,
    measured_memory,
    place,
)
from gnntrain.loading.sharded import MachineRows
from gnntrain.loading.wholegraph import WholeGraphFeatures
from gnntrain.sampling.base import Int64Array, SampleKey, Sampler
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.registry import sampler_class

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange


class LoaderBuilder:
    """Makes one rank's loaders over a graph.

    All loaders share the graph's tensors, its feature rows, and one sampler for each fan-outs. On a
    GPU the first loader places them, which is a collective: all ranks make it.

    Args:
        config: The whole configuration.
        store: The graph.
        context: This rank.
        needs: The fields that the model reads.
        plan: The training seeds.
        targets: By node, see `Task.targets`.
        uses_graph: Whether the model reads edges; else batches consist of their seeds.
        exchange: Each machine reads a range of the feature rows, and asks the others for theirs;
            None: each machine reads all rows.

    Attributes:
        kernels: Who computes the operators, and draws the batches: what this process has selected
            for the rank's device.
    """

    def __init__(
        self,
        config: Config,
        store: Graph,
        context: DistributedContext,
        needs: BlockNeeds,
        plan: SeedPlan,
        targets: Tensor,
        *,
        uses_graph: bool = True,
        exchange: Exchange | None = None,
    ) -> None:
        self._config = config
        self.kernels = selected(context.device.type)
        self._store = store
        self._context = context
        self._needs = needs
        self._plan = plan
        self._targets = targets
        self._uses_graph = uses_graph
        self._exchange = exchange
        self._why_sharded: tuple[str, ...] = ()
        self._pinned = PinnedArrays()
        self._samplers: dict[tuple[int, ...], Sampler] = {}
        self._rows = None if exchange is None else self._machine_rows(exchange)
        if self._rows is not None:
            self._rows.serve()

    def loader(
        self, plan: SeedPlan, fan_outs: AnyFanOuts, features: FeatureSource | None = None
    ) -> BlockLoader:
        """Mini-batches of the seeds of `plan`.

        Args:
            plan: The seeds.
            fan_outs: As `sampler.fan_outs`.
            features: Source of the feature rows; None: `self.features`.
        """
        features = self.features if features is None else features
        config, on_gpu = self._config.sampler, devices.is_gpu(self._context.device)
        overlaps = on_gpu or self._exchange is not None or self._context.num_machines > 1
        threads = num_loader_threads(config, torch.get_num_threads(), overlaps=overlaps)
        # On the CPU Triton's interpreter runs the kernels, in one thread only.
        is_interpreted = self.samples_on_gpu and not on_gpu
        # Without streams torch expects one thread to use a GPU (MPS).
        has_one_queue = on_gpu and not devices.has_streams(self._context.device)
        # All ranks must start the same gathers, also where training ends early.
        is_alone = is_interpreted or has_one_queue or isinstance(features, WholeGraphFeatures)
        return BlockLoader(
            self.values,
            features,
            self.sampler(fan_outs),
            plan,
            needs=self._needs,
            threads=0 if is_alone else threads,
            prefetch=config.prefetch,
            device=self._context.device,
        )

    def training_loader(self) -> BlockLoader | FullGraphLoader:
        """Mini-batches of the training seeds, or the full graph.

        Raises:
            UserError: `trainer.cuda_graph` is set, but the GPU cannot read edges or features.
        """
        if self._config.sampler.name == "full":
            return self.whole_graph_loader(self._plan)
        features = self._training_features()
        loader = self.loader(self._plan, self._config.sampler.fan_outs, features)
        records = self._config.trainer.cuda_graph
        if records and (not self.samples_on_gpu or features.waits):
            why = "; ".join(self.why_placed)
            raise UserError(
                f"trainer.cuda_graph needs edges and features where the GPU reads them: {why}.",
                "Leave it out, or store the features in half: dataset.feature_dtype=bfloat16.",
            )
        return loader

    def whole_graph_loader(self, plan: SeedPlan) -> FullGraphLoader:
        """The whole graph as one batch, with the seeds of `plan`."""
        trains_so = self._config.sampler.name == "full" and devices.is_gpu(self._context.device)
        return FullGraphLoader(
            (trains_so and self.graph_on_device) or self._placed_graph(),
            self._whole_rows or self._placed_features(),
            plan,
            num_layers=self._config.model.num_layers,
            needs=self._needs,
        )

    def _placed_graph(self) -> GraphTensors:
        store, device = self._store, self._context.device
        return GraphTensors.of(store, self._needs, device, targets=self._targets)

    def _placed_features(self) -> FeatureSource:
        rows, device = stored_rows(self._store), self._context.device
        return InPlaceFeatures(LazyFeatures(rows.to(device)), device)

    @cached_property
    def graph_on_device(self) -> GraphTensors | None:
        """The graph's tensors where a GPU reads them, to train or to evaluate; None: the edges are
        in host memory. Collective."""
        if self._as_one_batch is None:
            return self.graph if self.samples_on_gpu else None
        return self._placed_graph() if self._as_one_batch.topology == "resident" else None

    @cached_property
    def _whole_rows(self) -> FeatureSource | None:
        """With full-graph training: all rows in the GPU's memory; None: they do not fit."""
        is_resident = self._as_one_batch is not None and self._as_one_batch.features == "resident"
        return self._placed_features() if is_resident else None

    @cached_property
    def _as_one_batch(self) -> Placement | None:
        """What of the whole graph a GPU's memory holds with room to spare, in full-graph training.
        Collective."""
        if self._config.sampler.name != "full" or not devices.is_gpu(self._context.device):
            return None
        no_cache = FeaturesConfig(cache_bytes=0)
        return place(self._sizes(), measured_memory(self._context), features=no_cache)

    @cached_property
    def backend(self) -> str:
        """The name of the sampler."""
        asked = self._config.sampler.backend
        if asked != "auto":
            return asked
        placement = self._placement
        return "numba" if placement is None or placement.topology == "host" else "triton"

    @property
    def samples_on_gpu(self) -> bool:
        """Whether the sampler runs on the GPU."""
        return self._sampler_class.on_gpu

    @property
    def why_placed(self) -> tuple[str, ...]:
        """Edges' and features' placement with the reason; empty until a loader has placed them."""
        placement: Placement | None = self.__dict__.get("_placement")
        why = () if placement is None else placement.why
        return why[:1] + self._why_sharded if self._why_sharded else why

    @cached_property
    def graph(self) -> GraphTensors:
        """The graph's tensors where the sampler reads them."""
        placement = self._placement
        if not self.samples_on_gpu or placement is None:
            return GraphTensors.of(self._store, self._needs, targets=self._targets)
        device, indices = self._context.device, self._pinned.indices
        return GraphTensors.of(self._store, self._needs, device, indices, self._targets)

    def _training_features(self) -> FeatureSource:
        """The feature rows of training's batches. Collective.

        WholeGraph gathers only these: all ranks make the same steps, but may evaluate alone.
        """
        if self._uses_wholegraph:
            return WholeGraphFeatures(stored_rows(self._store), self._context)
        return self.features

    @property
    def _uses_wholegraph(self) -> bool:
        return self._placement is not None and self._placement.features == "wholegraph"

    @property
    def is_sharded(self) -> bool:
        """Whether this machine reads feature rows of others by calls to them."""
        return self._exchange is not None

    @property
    def values(self) -> BatchValues:
        """The source of the batches' targets, weights, degrees and norms."""
        return self.graph

    @cached_property
    def features(self) -> FeatureSource:
        """The feature rows where the model reads them. Collective."""
        if self._rows is not None:
            keys = self._config.features
            if self._uses_wholegraph:  # only evaluation asks the exchange
                keys = keys.model_copy(update={"cache_ratio": 0.0})
            sources, self._why_sharded = self._rows.sources(keys, self._presampled, self._context)
            return sources[self._store.target]
        if self._whole_rows is not None:
            return self._whole_rows
        placement = self._placement
        if placement is None:
            return InPlaceFeatures.of(self._store)
        hot = self._hot_nodes(placement.num_cached) if placement.features == "cached" else None
        pinned_rows = self._pinned.rows.get(self._store.target)
        return place_features(stored_rows(self._store), placement, self._context, hot, pinned_rows)

    def _machine_rows(self, exchange: Exchange) -> MachineRows:
        """The rows that this machine reads."""
        return MachineRows.of_ranges(self._store, exchange)

    def _presampled(self, num_epochs: int) -> Iterator[dict[NodeType, Tensor]]:
        target = self._store.target
        for nodes in dry_epochs(self._draw, self._plan, num_epochs):
            yield {target: nodes}

    def sampler(self, fan_outs: AnyFanOuts) -> Sampler:
        """One sampler for all loaders with these fan-outs: they share its working memory."""
        key = same_fan_outs(fan_outs) if self._uses_graph else ()
        if key not in self._samplers:
            self._samplers[key] = self._sampler_class(
                self.graph.indptr,
                self.graph.indices,
                key,
                replace=self._config.sampler.replace,
                edge_ids=self.graph.weight is not None,
            )
        return self._samplers[key]

    @cached_property
    def _sampler_class(self) -> type[Sampler]:
        return sampler_class(self.backend)

    @cached_property
    def _placement(self) -> Placement | None:
        """The placement for a GPU; None: a CPU reads the store. Collective."""
        config = self._config
        if not devices.is_gpu(self._context.device) and not self._draws_on_gpu:
            return None
        features = config.features
        if self._exchange is not None and features.placement != "wholegraph":
            features = FeaturesConfig(placement="memmap")  # one machine's rows are not all
        choose = partial(
            place,
            self._sizes(),
            topology=config.sampler.topology,
            features=features,
            samples_on_gpu=self._draws_on_gpu,
            reads_host=self.kernels.reads_host or not devices.is_gpu(self._context.device),
        )
        memory = measured_memory(self._context)
        placement, self._pinned = place_and_pin(self._store, choose, memory, self._context)
        return placement

    def _sizes(self) -> Sizes:
        store = self._store
        return Sizes(
            small=store.indptr.nbytes
            + self._targets.nbytes
            + 4 * store.num_nodes * self._needs.norm
            + 4 * store.num_edges * (self._needs.weight and store.edge_weight is not None),
            topology=store.indices.nbytes,
            features=store.features.nbytes,
            num_nodes=store.num_nodes,
        )

    @property
    def _draws_on_gpu(self) -> bool:
        """Whether the GPU draws if it has room for the edges.

        Raises:
            UserError: The asked sampler is one of the kernels that this run does not use.
        """
        asked, kernels = self._config.sampler.backend, self.kernels
        if asked == "auto":
            return kernels.samples_on_gpu
        is_on_gpu = devices.is_gpu(self._context.device)
        if asked == "triton" and is_on_gpu and not kernels.samples_on_gpu:
            why = kernels.replaced.get(SAMPLER, "this run computes by torch's operators alone")
            raise UserError(
                f"sampler.backend=triton cannot be used on this GPU: {why}.",
                "Leave it out: the CPU draws then.",
            )
        return sampler_class(asked).on_gpu

    def _hot_nodes(self, num_cached: int) -> Tensor:
        """The nodes whose rows this rank's cache holds, ascending."""
        if num_cached == 0:
            return torch.empty(0, dtype=torch.int64)
        num_epochs = self._config.features.presample_epochs
        counts = presampled(self._draw, self._plan, self._store.num_nodes, num_epochs)
        return hottest(counts, num_cached)

    def _draw(self, seeds: Int64Array, key: SampleKey) -> Tensor:
        """The nodes of a training batch."""
        sampler = self.sampler(self._config.sampler.fan_outs)
        return sampler.sample(as_tensor(seeds), key).nodes


def num_loader_threads(sampler: SamplerConfig, num_threads: int, *, overlaps: bool) -> int:
    """Background threads that make a rank's batches.

    Args:
        sampler: The `sampler` keys.
        num_threads: Compute threads of the rank.
        overlaps: Whether the rank's cores wait: for a GPU, or for other machines.
    """
    if sampler.threads is not None:
        return sampler.threads
    # On a single core a thread would only compete with the step, and hold a second batch in memory.
    return int(overlaps or num_threads > 1)
