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

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain import devices, models
from gnntrain.compute.features import LazyFeatures
from gnntrain.config import Config
from gnntrain.data.graph import SPLITS, Graph, NodeType
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.targets import TargetScale, refuse_other_labels, refuse_other_types
from gnntrain.distributed.context import DistributedContext
from gnntrain.limits import total_memory
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.features import FeatureSource
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.shared import SharedGraph
from gnntrain.models import AnyModel, PlainModel
from gnntrain.tasks import NodeClassification, NodeRegression, Task
from gnntrain.tasks.base import Labels
from gnntrain.tasks.node_classification import positive_class
from gnntrain.training.buffers import DeviceBuffers, SharedBuffers
from gnntrain.training.evaluation import Evaluator, SampledEvaluator
from gnntrain.training.graph_access import OwnedParts, WholeGraph
from gnntrain.training.layerwise import LayerwiseEvaluator
from gnntrain.training.module_outputs import ModuleEvaluator

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange


_EVALUATION_STREAM = 0x45564131  # sampled evaluation must not draw the neighbours of training


def build_task(
    config: Config, graph: Graph, labels: Labels | None = None, scale: TargetScale | None = None
) -> Task:
    """The task on the graph, with the `labels` and the `scale` of targets of a trained model, if
    any; a UserError where keys of task or model do not fit the graph's labels or types."""
    refuse_other_types(config, graph)
    refuse_other_labels(config, graph.dataset, (labels or graph).task)
    if config.task.type == "node_regression":
        loss, delta = config.task.loss, config.task.huber_delta
        return NodeRegression(graph, labels, scale, loss=loss, huber_delta=delta)
    return NodeClassification(
        graph,
        labels,
        label_smoothing=config.trainer.label_smoothing,
        balanced=config.trainer.class_weights == "balanced",
        positive=positive_class(labels or graph, config.task.positive_class) or 0,
        top_k=config.task.top_k,
    )


def build_model(config: Config, task: Task, graph: Graph, context: DistributedContext) -> AnyModel:
    """The untrained model on the rank's device: equal weights on all ranks. Torch's generators are
    left with a seed of the rank's own, for dropout."""
    seed = config.trainer.seed
    devices.seed_generators(seed, context.device)
    model = models.build_model(config.model, graph.schema, task.num_outputs)
    if task.head is not None:
        model.add_module("head", task.head)
    devices.seed_generators(seed + 1 + context.rank, context.device)
    return model.to(context.device)


def build_exchange(
    config: Config, context: DistributedContext
) -> AbstractContextManager[Exchange | None]:
    """The calls between machines that share out the graph; None: each has all of it. Collective."""
    graph, servers = config.distributed.graph, config.distributed.servers
    is_local = graph == "replicated" or (graph == "sharded" and context.num_machines == 1)
    if is_local and not servers:
        return nullcontext()
    from gnntrain.distributed.exchange import open_exchange  # most runs ask no other machine

    # The ranks that hold each part of the graph: the servers, or those of each machine.
    world_size = context.world_size
    owners = [range(rank, rank + 1) for rank in range(world_size - servers, world_size)]
    return open_exchange(
        context,
        owners=owners or [context.ranks_of(machine) for machine in range(context.num_machines)],
        # The owner is named: who waits for it gives up before others wait in vain for that rank.
        timeout=0.9 * config.distributed.timeout,
        # Of the threads that make batches, of one that reads rows ahead, and of the main thread.
        num_lanes=(config.sampler.threads or 1) + 2,
    )


def build_loaders(
    config: Config,
    task: Task,
    model: AnyModel,
    graph: Graph,
    context: DistributedContext,
    exchange: Exchange | None = None,
) -> LoaderBuilder:
    """The builder of the rank's loaders, for training and for evaluation."""
    plan = training_plan(config, task, context, by_node=model.needs.edge_index)
    return LoaderBuilder(
        *(config, graph, context, model.needs, plan, task.targets),
        make_seeds=task.seeds,
        uses_graph=model.uses_graph,
        is_typed=model.is_hetero,
        exchange=exchange,
    )


def training_plan(
    config: Config, task: Task, context: DistributedContext, *, by_node: bool = False
) -> SeedPlan:
    """This rank's training seeds in each step; for `by_node` see `SampleKey`."""
    return SeedPlan(
        task.examples("train"),
        config.trainer.batch_size,
        rank=context.rank,
        world_size=context.world_size,
        drop_last=config.trainer.drop_last,
        seed=config.trainer.seed,
        by_node=by_node,
    )


def build_evaluator(
    config: Config,
    task: Task,
    model: AnyModel,
    loaders: LoaderBuilder,
    graph: Graph,
    context: DistributedContext,
    scratch_dir: Path,
    *,
    exact: bool = False,
) -> Evaluator:
    """The evaluator that the `evaluation` keys describe; or (`exact`) the exact one, which can
    `infer`. It reads edges and features where the loaders do. Activations that do not fit in memory
    go to `scratch_dir`."""
    if config.evaluation.name == "sampled" and not exact:
        fan_outs = config.evaluation.fan_outs or config.sampler.fan_outs
        plans = _evaluation_plans(config, task, context, by_node=model.needs.edge_index)
        sampled = {split: loaders.loader(plan, fan_outs) for split, plan in plans.items()}
        why = "from sampled in-neighbours (evaluation=sampled)"
        return SampledEvaluator(task, sampled, context, estimated=why)
    on_gpu, limit = devices.is_gpu(context.device), config.evaluation.memory_limit
    limit = int((total_memory() / 2**32 if limit is None else limit) * 2**30)  # None: a quarter
    if isinstance(model, PlainModel):  # each rank has activations of its own
        buffers = SharedBuffers(DistributedContext(device=context.device), scratch_dir, limit)
        plans, hops = _evaluation_plans(config, task, context), config.model.num_layers
        return ModuleEvaluator(task, loaders, graph, context, buffers, plans, hops)
    buffers, sources = SharedBuffers(context, scratch_dir, limit), loaders.features
    if isinstance(graph, PartitionedGraph):
        shared, exchange = loaders.values, loaders.exchange
        assert isinstance(shared, SharedGraph)
        assert exchange is not None
        return LayerwiseEvaluator(OwnedParts(graph, buffers, sources, shared, exchange), task)
    features: Mapping[NodeType, LazyFeatures | FeatureSource] = sources
    if on_gpu:
        reads_host = loaders.kernels.reads_host
        buffers = DeviceBuffers(context, scratch_dir, limit, reads_host=reads_host)
    if loaders.exchange is None:
        features = {t: source.select() for t, source in sources.items()}
    edges = loaders.graph_on_device if on_gpu and not loaders.is_typed else None
    all_ranks = config.evaluation.ranks == "all"
    whole = WholeGraph(graph, buffers, features, all_ranks=all_ranks, edges=edges)
    return LayerwiseEvaluator(whole, task)


def _evaluation_plans(
    config: Config, task: Task, context: DistributedContext, *, by_node: bool = False
) -> dict[str, SeedPlan]:
    evaluation, seed = config.evaluation, config.trainer.seed ^ _EVALUATION_STREAM
    all_ranks = evaluation.ranks == "all"
    plans = {}
    for split in SPLITS:
        seeds = task.examples(split)
        if evaluation.name == "sampled" and evaluation.max_steps is not None:
            # A random part of the split, the same one on any number of ranks.
            shuffled = SeedPlan(seeds, evaluation.batch_size, seed=seed).order(0)
            seeds = shuffled[: evaluation.max_steps * evaluation.batch_size]
        plans[split] = SeedPlan(
            seeds,
            evaluation.batch_size,
            rank=context.rank if all_ranks else 0,
            world_size=context.world_size if all_ranks else 1,
            shuffle=False,
            redraw=False,
            seed=seed,
            by_node=by_node,
        )
    return plans
