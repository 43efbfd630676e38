"""From a configuration to one rank's working parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from gnntrain.config import Config
from gnntrain.data.store import GraphStore
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import MappedFeatures
from gnntrain.loading.loader import FullGraphLoader, Loader, NeighborLoader, SeedPlan
from gnntrain.models import GNN, PlainModel, build_model
from gnntrain.sampling.base import NeighborSampler
from gnntrain.sampling.cpu import CPUNeighborSampler
from gnntrain.sampling.pyg import PyGBackendSampler
from gnntrain.training.evaluation import Evaluator, LayerwiseEvaluator, SampledEvaluator
from gnntrain.training.forward import needs_of
from gnntrain.training.scratch import Scratch

# Sampled evaluation must not draw what training draws.
_EVALUATION_STREAM = 0x45564131


class Parts:
    """One rank's model, loaders and evaluator over the shared store.

    Args:
        config: The whole configuration.
        store: The graph.
        context: This rank.
        scratch_dir: Where evaluation may put activations that do not fit in memory.
    """

    def __init__(
        self, config: Config, store: GraphStore, context: DistributedContext, scratch_dir: Path
    ) -> None:
        self.config = config
        self.store = store
        self.context = context
        self._features = MappedFeatures(store)
        self.model = self._build_model()
        self.evaluator = self._build_evaluator(scratch_dir)

    @property
    def num_parameters(self) -> int:
        """Trainable parameters of the model."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def loader(self) -> Loader:
        """This rank's mini-batches of the training nodes."""
        config = self.config
        plan = SeedPlan(
            self.store.split("train"),
            config.trainer.batch_size,
            rank=self.context.rank,
            world_size=self.context.world_size,
            drop_last=config.trainer.drop_last,
            seed=config.trainer.seed,
        )
        if config.sampler.name == "full":
            return FullGraphLoader(
                self.store,
                self._features,
                plan,
                num_layers=config.model.num_layers,
                needs=needs_of(self.model),
            )
        return self._neighbor_loader(plan, config.sampler.fan_outs)

    def sampler_in_words(self) -> str:
        """The sampler as the console shows it."""
        sampler = self.config.sampler
        if sampler.name == "full":
            return "full graph"
        backend = "numba" if sampler.backend == "auto" else sampler.backend
        return f"neighbor {list(sampler.fan_outs)} ({backend})"

    def _build_model(self) -> GNN | PlainModel:
        # Equal weights on every rank, then a stream of its own for dropout on each.
        seed = self.config.trainer.seed
        torch.manual_seed(seed)
        model = build_model(self.config.model, self.store.num_features, self.store.num_outputs)
        torch.manual_seed(seed + 1 + self.context.rank)
        return model.to(self.context.device)

    def _build_evaluator(self, scratch_dir: Path) -> Evaluator:
        config = self.config.evaluation
        all_ranks = config.ranks == "all"
        if config.name == "layerwise" and isinstance(self.model, GNN):
            memory_limit = int(config.memory_limit * 2**30)
            scratch = Scratch(self.context, scratch_dir, memory_limit)
            return LayerwiseEvaluator(
                self.store, self._features, self.context, scratch, all_ranks=all_ranks
            )
        if config.name == "layerwise":
            # A plain PyG model cannot be run a layer at a time: exact by whole neighbourhoods.
            fan_outs: Sequence[int] = (-1,) * self.config.model.num_layers
        else:
            fan_outs = config.fan_outs or self.config.sampler.fan_outs
        loaders = {
            split: self._evaluation_loader(split, fan_outs, all_ranks)
            for split in ("train", "val", "test")
        }
        return SampledEvaluator(self.store, loaders, self.context, max_steps=config.max_steps)

    def _evaluation_loader(
        self, split: str, fan_outs: Sequence[int], all_ranks: bool
    ) -> NeighborLoader:
        config = self.config.evaluation
        plan = SeedPlan(
            self.store.split(split),
            config.batch_size,
            rank=self.context.rank if all_ranks else 0,
            world_size=self.context.world_size if all_ranks else 1,
            # With a limit on the steps the nodes must be a random part of the split.
            shuffle=config.max_steps is not None,
            seed=self.config.trainer.seed ^ _EVALUATION_STREAM,
        )
        return self._neighbor_loader(plan, fan_outs)

    def _neighbor_loader(self, plan: SeedPlan, fan_outs: Sequence[int]) -> NeighborLoader:
        config = self.config.sampler
        return NeighborLoader(
            self.store,
            self._features,
            self._sampler(fan_outs),
            plan,
            needs=needs_of(self.model),
            threads=self._num_loader_threads(),
            prefetch=config.prefetch,
        )

    def _num_loader_threads(self) -> int:
        threads = self.config.sampler.threads
        if threads is None:
            # On a CPU rank with one core a thread would only take it from the step, and hold a
            # second batch in memory.
            threads = int(self.context.device.type == "cuda" or torch.get_num_threads() > 1)
        return threads

    def _sampler(self, fan_outs: Sequence[int]) -> NeighborSampler:
        store, config = self.store, self.config.sampler
        if isinstance(self.model, GNN) and not self.model.uses_graph:
            fan_outs = ()
        sampler = PyGBackendSampler if config.backend == "pyg" else CPUNeighborSampler
        return sampler(
            store.indptr,
            store.indices,
            fan_outs,
            replace=config.replace,
            edge_ids=store.edge_weight is not None and needs_of(self.model).weight,
        )
