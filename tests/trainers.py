"""A rank's parts over a graph, as a configuration describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnntrain.build import build_evaluator, build_loaders, build_model, build_task
from gnntrain.config import Config
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.build import LoaderBuilder
from gnntrain.training.trainer import Trainer


def loaders_of(
    config: Config, graph: Graph, context: DistributedContext | None = None
) -> LoaderBuilder:
    """The loaders of any rank for a model on the CPU."""
    task = build_task(config, graph)
    model = build_model(config, task, graph, DistributedContext())
    loaders = build_loaders(config, task, model, graph, context or DistributedContext())
    assert isinstance(loaders, LoaderBuilder)
    return loaders


def trainer_of(
    config: Config,
    graph: Graph,
    scratch_dir: Path,
    *,
    context: DistributedContext | None = None,
    **options: Any,
) -> Trainer:
    """A trainer; `options` are further arguments of it."""
    context = context or DistributedContext()
    task = build_task(config, graph)
    model = build_model(config, task, graph, context)
    loaders = build_loaders(config, task, model, graph, context)
    return Trainer(
        model,
        loaders.training_loader(),
        build_evaluator(config, task, model, loaders, graph, context, scratch_dir),
        task=task,
        config=config.trainer,
        context=context,
        **options,
    )
