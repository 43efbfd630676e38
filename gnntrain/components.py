"""From a configuration to one rank's components: model, task, loaders, evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import psutil
import torch

from gnntrain.config import Config
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.loader import Loader, SeedPlan
from gnntrain.models import GNN, PlainModel, build_model
from gnntrain.tasks import NodeClassification, Task
from gnntrain.tasks.node_classification import Labels
from gnntrain.training.buffers import DeviceBuffers, SharedBuffers
from gnntrain.training.evaluation import (
    Evaluator,
    Inferred,
    LayerwiseEvaluator,
    SampledEvaluator,
    infer_by_batch,
)
from gnntrain.training.forward import needs_of

# Sampled evaluation must not draw what training draws.
_EVALUATION_STREAM = 0x45564131


class Components:
    """One rank's model, loaders and evaluator over the shared store.

    Args:
        config: The whole configuration.
        store: The graph.
        context: This rank.
        scratch_dir: Where evaluation may put activations that do not fit in memory.
        labels: What a trained model tells apart; None: the graph's labels.
    """

    def __init__(
        self,
        config: Config,
        store: Graph,
        context: DistributedContext,
        scratch_dir: Path,
        *,
        labels: Labels | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.context = context
        self.task: Task = NodeClassification(
            store, labels, label_smoothing=config.trainer.label_smoothing
        )
        self._scratch_dir = scratch_dir
        self.model = self._build_model()
        self.loaders = LoaderBuilder(
            config,
            store,
            context,
            needs_of(self.model),
            self.plan(),
            self.task.targets,
            uses_graph=isinstance(self.model, PlainModel) or self.model.uses_graph,
        )

    @property
    def num_parameters(self) -> int:
        """Trainable parameters of the model."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def loader(self) -> Loader:
        """This rank's mini-batches of the training nodes."""
        return self.loaders.training_loader(own_features=isinstance(self.model, PlainModel))

    def plan(self) -> SeedPlan:
        """Which training nodes this rank takes when."""
        config, seeds = self.config, self.task.seeds("train")
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
        return f"neighbor {list(sampler.fan_outs)} ({self.loaders.backend})"

    def _build_model(self) -> GNN | PlainModel:
        # Equal weights on every rank, then a stream of its own for dropout on each.
        seed = self.config.trainer.seed
        torch.manual_seed(seed)
        model = build_model(self.config.model, self.store.num_features, self.task.num_outputs)
        torch.manual_seed(seed + 1 + self.context.rank)
        return model.to(self.context.device)

    def infer(self, *, embed: bool = False) -> Inferred:
        """What the model says of every node, exactly, by one rank alone.

        Args:
            embed: Keep the rows that enter the last layer, too; not of a plain PyG model.
        """
        if isinstance(self.model, GNN):
            return self._layerwise().infer(self.model, embed=embed)
        logits = self._scratch().matrix("logits", self.store.num_nodes, self.task.num_outputs)
        plan = SeedPlan(
            np.arange(self.store.num_nodes),
            self.config.evaluation.batch_size,
            shuffle=False,
            redraw=False,
        )
        loader = self.loaders.loader(plan, (-1,) * self.config.model.num_layers)
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
        return SampledEvaluator(self.task, loaders, self.context)

    def _layerwise(self) -> LayerwiseEvaluator:
        all_ranks = self.config.evaluation.ranks == "all"
        store, context, host = self.store, self.context, self._scratch()
        if context.device.type != "cuda":
            return LayerwiseEvaluator(store, context, host, task=self.task, all_ranks=all_ranks)
        samples = self.config.sampler.name == "neighbor"
        return LayerwiseEvaluator(
            store,
            context,
            DeviceBuffers(context, host),
            task=self.task,
            all_ranks=all_ranks,
            # What mini-batches read; where there are none, the store's pages.
            features=self.loaders.features.select() if samples else None,
            graph=self.loaders.graph if samples and self.loaders.samples_on_gpu else None,
        )

    def _scratch(self) -> SharedBuffers:
        limit = self.config.evaluation.memory_limit
        if limit is None:
            limit = psutil.virtual_memory().total / 2**32  # a quarter, in GiB
        return SharedBuffers(self.context, self._scratch_dir, int(limit * 2**30))

    def _evaluation_loader(self, split: str, fan_outs: Sequence[int], all_ranks: bool) -> Loader:
        config = self.config.evaluation
        seed = self.config.trainer.seed ^ _EVALUATION_STREAM
        nodes = self.task.seeds(split)
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
        return self.loaders.loader(plan, fan_outs)
