"""From a configuration to one rank's working parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.config import Config, SamplerConfig
from gnntrain.data.store import GraphStore
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading.device_features import (
    DeviceFeatures,
    PlacedFeatures,
    place_features,
)
from gnntrain.loading.features import MappedFeatures, as_tensor, stored_rows
from gnntrain.loading.hotness import hottest, out_degrees, presampled
from gnntrain.loading.loader import FullGraphLoader, Loader, NeighborLoader, SeedPlan
from gnntrain.loading.pinned import pinned
from gnntrain.loading.placement import Placement, Sizes, measured_memory, place
from gnntrain.loading.pyg_loader import PyGGraph, PyGNeighborLoader
from gnntrain.models import GNN, PlainModel, build_model
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.cpu import CPUNeighborSampler
from gnntrain.training.buffers import DeviceBuffers, SharedBuffers
from gnntrain.training.evaluation import (
    Evaluator,
    Inferred,
    LayerwiseEvaluator,
    SampledEvaluator,
    infer_by_batch,
)
from gnntrain.training.forward import needs_of

if TYPE_CHECKING:
    from gnntrain.loading.device import DeviceGraph
    from gnntrain.sampling.gpu import TritonNeighborSampler

# Sampled evaluation must not draw what training draws.
_EVALUATION_STREAM = 0x45564131


class Parts:
    """One rank's model, loaders and evaluator over the shared store.

    Args:
        config: The whole configuration.
        store: The graph.
        context: This rank.
        scratch_dir: Where evaluation may put activations that do not fit in memory.
        num_outputs: Of the model; None: as the graph's labels want it.
    """

    def __init__(
        self,
        config: Config,
        store: GraphStore,
        context: DistributedContext,
        scratch_dir: Path,
        *,
        num_outputs: int | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.context = context
        self._num_outputs = num_outputs or store.num_outputs
        self._features = MappedFeatures(store)
        self._samplers: dict[tuple[int, ...], CPUNeighborSampler] = {}
        self._device_samplers: dict[tuple[int, ...], TritonNeighborSampler] = {}
        self._scratch_dir = scratch_dir
        self.model = self._build_model()

    @property
    def num_parameters(self) -> int:
        """Trainable parameters of the model."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def loader(self) -> Loader:
        """This rank's mini-batches of the training nodes."""
        config, plan = self.config, self.plan()
        if config.sampler.name == "full":
            device = self.context.device
            rows = stored_rows(self.store).to(device) if device.type == "cuda" else None
            return FullGraphLoader(
                self.store,
                self._features if rows is None else PlacedFeatures(LazyFeatures(rows), device),
                plan,
                num_layers=config.model.num_layers,
                needs=needs_of(self.model),
                device=device,
                own_features=isinstance(self.model, PlainModel),
            )
        loader = self._neighbor_loader(plan, config.sampler.fan_outs)
        if config.trainer.cuda_graph and (self._backend != "triton" or self._device_features.waits):
            why = "; ".join(self._placement.why)
            raise UserError(
                f"trainer.cuda_graph needs edges and features where the GPU reads them: {why}.",
                "Leave it out, or store the features in half: dataset.feature_dtype=bfloat16.",
            )
        return loader

    def plan(self) -> SeedPlan:
        """Which training nodes this rank takes when."""
        config, seeds = self.config, self.store.split("train")
        full = config.sampler.name == "full"
        return SeedPlan(
            seeds,
            -(-len(seeds) // self.context.world_size) if full else config.trainer.batch_size,
            rank=self.context.rank,
            world_size=self.context.world_size,
            drop_last=config.trainer.drop_last,
            seed=config.trainer.seed,
        )

    def sampler_in_words(self) -> str:
        """The sampler as the console shows it."""
        sampler = self.config.sampler
        if sampler.name == "full":
            return "full graph"
        return f"neighbor {list(sampler.fan_outs)} ({self._backend})"

    @property
    def placement_in_words(self) -> tuple[str, ...]:
        """Where the graph lies and why, where a GPU trains on mini-batches of it.

        Asked of one rank alone: only where the loaders have settled the placement with all others.
        """
        sampler = self.config.sampler
        on_host = sampler.name == "full" or sampler.backend == "pyg"
        if self.context.device.type != "cuda" or on_host:
            return ()
        return self._placement.why

    @cached_property
    def _backend(self) -> str:
        """Who draws."""
        asked = self.config.sampler.backend
        if asked != "auto":
            return asked
        on_gpu = self.context.device.type == "cuda" and find_spec("triton") is not None
        return "triton" if on_gpu and self._placement.topology != "host" else "numba"

    @cached_property
    def _placement(self) -> Placement:
        """Where the graph lies; asked of all ranks together."""
        config, store, context = self.config, self.store, self.context
        needs = needs_of(self.model)
        sizes = Sizes(
            small=store.indptr.nbytes
            + store.labels.nbytes
            + 4 * store.num_nodes * (needs.norm + needs.degree)
            + 4 * store.num_edges * (needs.weight and store.edge_weight is not None),
            topology=store.indices.nbytes,
            features=store.features.nbytes,
            num_nodes=store.num_nodes,
        )
        draws_on_host = config.sampler.backend in ("numba", "pyg")
        topology = "host" if draws_on_host else config.sampler.topology
        memory = measured_memory(context)
        return place(sizes, memory, topology=topology, features=config.features)

    def _build_model(self) -> GNN | PlainModel:
        # Equal weights on every rank, then a stream of its own for dropout on each.
        seed = self.config.trainer.seed
        torch.manual_seed(seed)
        model = build_model(self.config.model, self.store.num_features, self._num_outputs)
        torch.manual_seed(seed + 1 + self.context.rank)
        return model.to(self.context.device)

    def infer(self, *, embed: bool = False) -> Inferred:
        """What the model says of every node, exactly, by one rank alone.

        Args:
            embed: Keep the rows that enter the last layer, too; not of a plain PyG model.
        """
        if isinstance(self.model, GNN):
            return self._layerwise().infer(self.model, embed=embed)
        logits = self._scratch().matrix("logits", self.store.num_nodes, self._num_outputs)
        plan = SeedPlan(
            np.arange(self.store.num_nodes),
            self.config.evaluation.batch_size,
            shuffle=False,
            redraw=False,
        )
        loader = self._neighbor_loader(plan, (-1,) * self.config.model.num_layers)
        infer_by_batch(self.model, loader, self.context, logits)
        return Inferred(logits)

    @cached_property
    def evaluator(self) -> Evaluator:
        """This rank's evaluator, as the configuration wants it."""
        config = self.config.evaluation
        all_ranks = config.ranks == "all"
        if config.name == "layerwise" and isinstance(self.model, GNN):
            return self._layerwise()
        if config.name == "layerwise":
            # A plain PyG model cannot be run a layer at a time: exact by whole neighbourhoods.
            fan_outs: Sequence[int] = (-1,) * self.config.model.num_layers
        else:
            fan_outs = config.fan_outs or self.config.sampler.fan_outs
        loaders = {
            split: self._evaluation_loader(split, fan_outs, all_ranks)
            for split in ("train", "val", "test")
        }
        return SampledEvaluator(self.store, loaders, self.context)

    def _layerwise(self) -> LayerwiseEvaluator:
        all_ranks = self.config.evaluation.ranks == "all"
        store, context, host = self.store, self.context, self._scratch()
        if context.device.type != "cuda":
            return LayerwiseEvaluator(store, context, host, all_ranks=all_ranks)
        samples = self.config.sampler.name == "neighbor"
        # What mini-batches read, where the GPU reads it in place.
        in_place = samples and not self._device_features.waits
        return LayerwiseEvaluator(
            store,
            context,
            DeviceBuffers(context, host),
            all_ranks=all_ranks,
            features=self._device_features.named() if in_place else None,
            graph=self._device_graph if samples and self._backend == "triton" else None,
        )

    def _scratch(self) -> SharedBuffers:
        limit = self.config.evaluation.memory_limit
        if limit is None:
            limit = psutil.virtual_memory().total / 2**32  # a quarter, in GiB
        return SharedBuffers(self.context, self._scratch_dir, int(limit * 2**30))

    def _evaluation_loader(self, split: str, fan_outs: Sequence[int], all_ranks: bool) -> Loader:
        config = self.config.evaluation
        seed = self.config.trainer.seed ^ _EVALUATION_STREAM
        nodes = self.store.split(split)
        if config.max_steps is not None:
            # A random part of the split, the same one on any number of ranks.
            shuffled = SeedPlan(nodes, config.batch_size, seed=seed).order(0)
            nodes = shuffled[: config.max_steps * config.batch_size]
        plan = SeedPlan(
            nodes,
            config.batch_size,
            rank=self.context.rank if all_ranks else 0,
            world_size=self.context.world_size if all_ranks else 1,
            shuffle=False,
            redraw=False,
            seed=seed,
        )
        return self._neighbor_loader(plan, fan_outs)

    def _neighbor_loader(self, plan: SeedPlan, fan_outs: Sequence[int]) -> Loader:
        config = self.config.sampler
        if not needs_of(self.model).edges:
            fan_outs = ()
        if config.backend == "pyg":
            return PyGNeighborLoader(
                self.store,
                self._features,
                self._stock_graph,
                plan,
                fan_outs,
                replace=config.replace,
                needs=self._host_needs(),
            )
        if self._backend == "triton":
            return self._device_loader(plan, tuple(fan_outs))
        on_gpu = self.context.device.type == "cuda"
        return NeighborLoader(
            self.store,
            self._device_features if on_gpu else self._features,
            self._sampler(tuple(fan_outs)),
            plan,
            needs=needs_of(self.model),
            threads=self._num_loader_threads(),
            prefetch=config.prefetch,
        )

    def _host_needs(self) -> BlockNeeds:
        """What batches carry that hold the store's own rows: a GPU cannot read these in place."""
        needs = needs_of(self.model)
        return replace(needs, rows=needs.rows and self.context.device.type == "cpu")

    @cached_property
    def _stock_graph(self) -> PyGGraph:
        """One for all stock loaders: it may hold a copy of the graph."""
        return PyGGraph(self.store)

    def _device_loader(self, plan: SeedPlan, fan_outs: tuple[int, ...]) -> Loader:
        # Triton need not be installed where it is not asked for.
        from gnntrain.loading.device import DeviceNeighborLoader

        # Triton's interpreter, in tests without a GPU, knows one thread only.
        on_gpu = self.context.device.type == "cuda"
        return DeviceNeighborLoader(
            self._device_graph,
            self._device_features,
            self.device_sampler(fan_outs),
            plan,
            needs=needs_of(self.model),
            threads=self._num_loader_threads() if on_gpu else 0,
            prefetch=self.config.sampler.prefetch,
        )

    def device_sampler(self, fan_outs: tuple[int, ...]) -> TritonNeighborSampler:
        """The GPU's sampler for these fan-outs, one for all loaders."""
        from gnntrain.sampling.gpu import TritonNeighborSampler

        if fan_outs not in self._device_samplers:
            graph = self._device_graph
            self._device_samplers[fan_outs] = TritonNeighborSampler(
                graph.indptr,
                graph.indices,
                fan_outs,
                replace=self.config.sampler.replace,
                edge_ids=graph.weight is not None,
                device=self.context.device,
            )
        return self._device_samplers[fan_outs]

    @cached_property
    def _device_graph(self) -> DeviceGraph:
        """One for all loaders."""
        from gnntrain.loading.device import DeviceGraph

        device, indices = self.context.device, self.store.indices
        on_gpu = self._placement.topology == "resident"
        placed = as_tensor(indices).to(device) if on_gpu else pinned(indices, self.context)
        return DeviceGraph.of(self.store, needs_of(self.model), device, placed)

    @cached_property
    def _device_features(self) -> DeviceFeatures:
        """One for all loaders. The hot rows are found before the rows are placed."""
        hot = self._hot_nodes() if self._placement.num_cached else None
        if hot is None and self._placement.features == "cached":
            hot = torch.empty(0, dtype=torch.int64)
        return place_features(self.store, self._placement, self.context, hot)

    def _hot_nodes(self) -> Tensor:
        """The nodes that this rank's cache holds."""
        asked, fan_outs = self.config.features, tuple(self.config.sampler.fan_outs)
        if asked.hotness == "degree":
            counts = out_degrees(self.store)
        elif self._backend == "triton":
            sampler = self.device_sampler(fan_outs)
            counts = presampled(
                lambda seeds, key: sampler.sample(seeds, key=key).nodes,
                self.plan(),
                self.store.num_nodes,
                asked.presample_epochs,
            )
        else:
            host = self._sampler(fan_outs)
            counts = presampled(
                lambda seeds, key: as_tensor(host.sample(seeds, key=key).nodes),
                self.plan(),
                self.store.num_nodes,
                asked.presample_epochs,
            )
        return hottest(counts, self._placement.num_cached)

    def _num_loader_threads(self) -> int:
        on_gpu = self.context.device.type == "cuda"
        return num_loader_threads(self.config.sampler, torch.get_num_threads(), on_gpu=on_gpu)

    def _sampler(self, fan_outs: tuple[int, ...]) -> CPUNeighborSampler:
        """One sampler for all loaders with these fan-outs: its working memory is worth sharing."""
        if fan_outs not in self._samplers:
            store = self.store
            self._samplers[fan_outs] = CPUNeighborSampler(
                store.indptr,
                store.indices,
                fan_outs,
                replace=self.config.sampler.replace,
                edge_ids=store.edge_weight is not None and needs_of(self.model).weight,
            )
        return self._samplers[fan_outs]


def num_loader_threads(sampler: SamplerConfig, num_threads: int, *, on_gpu: bool) -> int:
    """Background threads that make a rank's batches.

    Args:
        sampler: The `sampler` keys.
        num_threads: Compute threads of the rank.
        on_gpu: Whether the rank computes on a GPU.
    """
    if sampler.threads is not None:
        return sampler.threads
    # On a CPU rank with one core a thread would only take it from the step, and hold a second
    # batch in memory.
    return int(on_gpu or num_threads > 1)
