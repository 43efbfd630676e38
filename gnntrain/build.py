"""From a configuration to a rank's task, model, loaders and evaluator, one function each.

    task = build_task(config, graph)
    model = build_model(config, task, graph, context)
    with build_exchange(config, context) as exchange:
        loaders = build_loaders(config, task, model, graph, context, exchange)
        evaluator = build_evaluator(config, task, model, loaders, graph, context, scratch_dir)
        trainer = Trainer(model, loaders.training_loader(), evaluator, task=task, …)

All ranks call the same functions in the same order: on GPUs they place the graph together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from gnntrain import models
from gnntrain.config import Config
from gnntrain.data.graph import Graph
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.target_scale import TargetScale
from gnntrain.data.targets import refuse_other_labels
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.exchange import Exchange, open_exchange
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.partitioned import PartitionedLoaders
from gnntrain.models import GNN, PlainModel
from gnntrain.tasks import NodeClassification, NodeRegression, Task
from gnntrain.tasks.node_classification import Labels
from gnntrain.training.buffers import DeviceBuffers, SharedBuffers
from gnntrain.training.evaluation import SPLITS, Evaluator, LayerwiseEvaluator, SampledEvaluator
from gnntrain.training.partitioned import PartitionedEvaluator

# Sampled evaluation must not draw the same neighbours as training.
_EVALUATION_STREAM = 0x45564131


def build_task(
    config: Config, graph: Graph, labels: Labels | None = None, scale: TargetScale | None = None
) -> Task:
    """The task on the graph.

    Args:
        config: The whole configuration.
        graph: Nodes, splits and labels.
        labels: The labels of a trained model; None: those of the graph.
        scale: The scale of a trained regression's targets; None: that of the graph's.

    Raises:
        UserError: `task.type` does not fit the labels.
    """
    refuse_other_labels(config, graph.dataset, (labels or graph).task)
    if config.task.type == "node_regression":
        loss, delta = config.task.loss, config.task.huber_delta
        return NodeRegression(graph, labels, scale, loss=loss, huber_delta=delta)
    return NodeClassification(
        graph,
        labels,
        label_smoothing=config.trainer.label_smoothing,
        balanced=config.trainer.class_weights == "balanced",
    )


def build_model(
    config: Config, task: Task, graph: Graph, context: DistributedContext
) -> GNN | PlainModel:
    """The untrained model on the rank's device: equal weights on all ranks.

    Torch's generator is left with a seed of the rank's own, for dropout.
    """
    seed = config.trainer.seed
    torch.manual_seed(seed)
    model = models.build_model(config.model, graph.num_features, task.num_outputs)
    torch.manual_seed(seed + 1 + context.rank)
    return model.to(context.device)


@contextmanager
def build_exchange(config: Config, context: DistributedContext) -> Iterator[Exchange | None]:
    """The calls between machines that share out the graph; None: each has all of it. Collective."""
    graph = config.distributed.graph
    if graph == "replicated" or (graph == "sharded" and context.num_machines == 1):
        yield None
        return
    owners = [context.ranks_of(machine) for machine in range(context.num_machines)]
    timeout = config.distributed.timeout
    with open_exchange(context, owners=owners, host=context.host, timeout=timeout) as exchange:
        yield exchange


def build_loaders(
    config: Config,
    task: Task,
    model: GNN | PlainModel,
    graph: Graph,
    context: DistributedContext,
    exchange: Exchange | None = None,
) -> LoaderBuilder:
    """The builder of the rank's loaders, for training and for evaluation.

    Args:
        exchange: From `build_exchange`; None: this machine reads all feature rows.
    """
    plan = training_plan(config, task, context)
    if isinstance(graph, PartitionedGraph):
        assert exchange is not None, "the owners of a graph in parts must be asked"
        return PartitionedLoaders(
            config, graph, context, model.needs, plan, exchange, uses_graph=model.uses_graph
        )
    return LoaderBuilder(
        config,
        graph,
        context,
        model.needs,
        plan,
        task.targets,
        uses_graph=model.uses_graph,
        exchange=exchange,
    )


def training_plan(config: Config, task: Task, context: DistributedContext) -> SeedPlan:
    """This rank's training seeds in each step."""
    seeds = task.seeds("train")
    is_full = config.sampler.name == "full"
    return SeedPlan(
        seeds,
        -(-len(seeds) // context.world_size) if is_full else config.trainer.batch_size,
        rank=context.rank,
        world_size=context.world_size,
        drop_last=config.trainer.drop_last,
        seed=config.trainer.seed,
    )


def build_evaluator(
    config: Config,
    task: Task,
    model: GNN | PlainModel,
    loaders: LoaderBuilder,
    graph: Graph,
    context: DistributedContext,
    scratch_dir: Path,
) -> Evaluator:
    """The evaluator that the `evaluation` keys describe.

    Args:
        config, task, model, loaders, graph, context: As for training.
        scratch_dir: The folder for activations that do not fit in memory.
    """
    if config.evaluation.name == "sampled":
        fan_outs: Sequence[int] = config.evaluation.fan_outs or config.sampler.fan_outs
    elif isinstance(model, GNN) and isinstance(loaders, PartitionedLoaders):
        return PartitionedEvaluator(
            loaders.parts,
            loaders.owners,
            loaders.exchange,
            context,
            build_buffers(config, context, scratch_dir),
            task=task,
            features=loaders.features,
        )
    elif isinstance(model, GNN):
        return build_layerwise(config, task, loaders, graph, context, scratch_dir)
    else:  # A plain PyG model cannot be run layer by layer: exact by complete neighbourhoods.
        fan_outs = all_neighbors(config)
    plans = {split: _evaluation_plan(config, task, split, context) for split in SPLITS}
    return SampledEvaluator(
        task, {split: loaders.loader(plan, fan_outs) for split, plan in plans.items()}, context
    )


def build_layerwise(
    config: Config,
    task: Task,
    loaders: LoaderBuilder,
    graph: Graph,
    context: DistributedContext,
    scratch_dir: Path,
) -> LayerwiseEvaluator:
    """The exact evaluator of a `GNN`, whichever `evaluation.name` is.

    On a GPU it reads the same edges and features as the loaders.
    """
    all_ranks = config.evaluation.ranks == "all"
    buffers = build_buffers(config, context, scratch_dir)
    if context.device.type != "cuda":
        return LayerwiseEvaluator(graph, context, buffers, task=task, all_ranks=all_ranks)
    has_batches = config.sampler.name == "neighbor"
    return LayerwiseEvaluator(
        graph,
        context,
        DeviceBuffers(context, buffers),
        task=task,
        all_ranks=all_ranks,
        features=loaders.features.select() if has_batches else None,
        graph=loaders.graph if has_batches and loaders.samples_on_gpu else None,
    )


def build_buffers(config: Config, context: DistributedContext, scratch_dir: Path) -> SharedBuffers:
    """Matrices of all nodes, in `scratch_dir` beyond `evaluation.memory_limit`."""
    limit = config.evaluation.memory_limit
    if limit is None:
        limit = psutil.virtual_memory().total / 2**32  # a quarter, in GiB
    return SharedBuffers(context, scratch_dir, int(limit * 2**30))


def all_neighbors(config: Config) -> Sequence[int]:
    """Fan-outs with which a sampler takes every in-neighbour."""
    return (-1,) * config.model.num_layers


def sampler_in_words(config: Config, loaders: LoaderBuilder) -> str:
    """Description of the sampler for the console."""
    if config.sampler.name == "full":
        return "full graph"
    return f"neighbor {list(config.sampler.fan_outs)} ({loaders.backend})"


def _evaluation_plan(
    config: Config, task: Task, split: str, context: DistributedContext
) -> SeedPlan:
    evaluation, seeds = config.evaluation, task.seeds(split)
    seed = config.trainer.seed ^ _EVALUATION_STREAM
    if evaluation.max_steps is not None:
        # A random part of the split, the same one on any number of ranks.
        shuffled = SeedPlan(seeds, evaluation.batch_size, seed=seed).order(0)
        seeds = shuffled[: evaluation.max_steps * evaluation.batch_size]
    all_ranks = evaluation.ranks == "all"
    return SeedPlan(
        seeds,
        evaluation.batch_size,
        rank=context.rank if all_ranks else 0,
        world_size=context.world_size if all_ranks else 1,
        shuffle=False,
        redraw=False,
        seed=seed,
    )
