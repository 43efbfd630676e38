"""What the best model of a run says of the nodes of a graph: the run's own, or another one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gnntrain.components import Components
from gnntrain.compute.features import LazyFeatures
from gnntrain.config import Config, from_dict
from gnntrain.cores import available_cores
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.models import PlainModel
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run_store import ModelSignature, model_signature, open_run_store, prepare_store
from gnntrain.tasks import Task
from gnntrain.training.checkpoint import epoch_of, load_checkpoint, load_weights

__all__ = ["BestModel", "Outputs", "infer", "load_best"]


@dataclass(frozen=True)
class Outputs:
    """What a run's best model says of every node of a graph.

    Attributes:
        run: The run.
        epoch: Its best epoch.
        store: The graph.
        task: What the model's outputs mean.
        logits: float32 `[num_nodes, num_outputs]` on the CPU; a large one is mapped from disk.
        embeddings: float32 `[num_nodes, width]`, the rows that enter the model's last layer (of a
            single layer the features, as they are stored); None: not asked for.
    """

    run: RunDirectory
    epoch: int
    store: Graph
    task: Task
    logits: Tensor
    embeddings: Tensor | LazyFeatures | None


@dataclass(frozen=True)
class BestModel:
    """The best model of a run over a graph, ready to compute on this process alone.

    Attributes:
        run: The run.
        epoch: Its best epoch.
        signature: What the model takes and gives.
        components: The model with its weights, the graph, and what computes.
    """

    run: RunDirectory
    epoch: int
    signature: ModelSignature
    components: Components

    def infer(self, *, embed: bool = False) -> Outputs:
        """See the function `infer`."""
        components = self.components
        if embed and isinstance(components.model, PlainModel):
            raise UserError(
                f"model {components.config.model.name} has no embeddings that gnntrain knows of: "
                "it runs as a whole.",
                "Ask for logits, or derive the model from gnntrain.models.GNN.",
            )
        found = components.infer(embed=embed)
        return Outputs(
            self.run, self.epoch, components.store, components.task, found.logits, found.embeddings
        )


def infer(
    run_dir: str | Path,
    config: Config | None = None,
    *,
    embed: bool = False,
    scratch_dir: Path | None = None,
) -> Outputs:
    """Compute what a run's best model says of every node, exactly: over all in-neighbours.

    Layer by layer, in chunks: beside two layers' activations, which go to disk where they are
    larger than `evaluation.memory_limit`, little is held.

    Args:
        run_dir: The run: a directory, a name under `runs/`, or `latest`.
        config: The run's configuration with other keys: another data set makes it compute on that
            graph, which may be without labels. None: as the run was.
        embed: Keep the rows that enter the last layer, too.
        scratch_dir: Where activations go that are too large for memory; None: the run directory.

    Raises:
        UserError: The graph is not there, or is none that the model can take.
    """
    return load_best(run_dir, config, scratch_dir).infer(embed=embed)


def load_best(
    run_dir: str | Path, config: Config | None = None, scratch_dir: Path | None = None
) -> BestModel:
    """Load a run's best model over its graph, or over another one; see `infer`."""
    run = RunDirectory.open(run_dir)
    begun = from_dict(run.config(), saved=True)
    config = config or begun
    checkpoint = run.best_checkpoint()
    state = load_checkpoint(checkpoint)
    if config.dataset == begun.dataset:
        store = open_run_store(run, begun.dataset).store
        signature = ModelSignature.of(store)
    else:
        signature = model_signature(run, begun.dataset)
        store = prepare_store(config.dataset, labelled=False).store
        _refuse_other_features(store, signature)
    use_gpu = config.trainer.gpus != 0 and torch.cuda.is_available()
    context = DistributedContext(device=torch.device("cuda" if use_gpu else "cpu"))
    torch.set_num_threads(config.distributed.threads or available_cores())
    components = Components(config, store, context, scratch_dir or run.path, labels=signature)
    load_weights(components.model, state, checkpoint)
    return BestModel(run, epoch_of(state, checkpoint), signature, components)


def _refuse_other_features(store: Graph, signature: ModelSignature) -> None:
    if store.num_features != signature.num_features:
        raise UserError(
            f"The model takes {signature.num_features} features a node; the graph {store.dataset} "
            f"has {store.num_features}.",
            "Give the features it was trained on, in the same order.",
        )
