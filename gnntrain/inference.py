"""The outputs of a run's best model for the nodes of a graph: the run's own, or another one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gnntrain.build import (
    build_evaluator,
    build_exact_evaluator,
    build_loaders,
    build_model,
    build_task,
)
from gnntrain.compute.selection import select
from gnntrain.config import (
    ComputeConfig,
    Config,
    DatasetConfig,
    TrainerConfig,
    from_dict,
    refuse_other_arguments,
)
from gnntrain.data.dataset_warnings import edge_warnings
from gnntrain.data.graph import NODE, Graph, GraphSchema, NodeType
from gnntrain.data.preprocessing import AnyPreprocessing, FeatureColumn, Preprocessing
from gnntrain.data.store import StoredGraph
from gnntrain.devices import accelerator, alone_in_process, generator_kept
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.init_from import Axis, learnt_rows, placed, places_of
from gnntrain.limits import available_cores
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run_store import (
    ModelSignature,
    has_changed,
    model_signature,
    open_run_store,
    prepare_store,
    prepared_alike,
    refuse_other_nodes,
    refuse_other_types,
)
from gnntrain.selfcheck import kernel_choice
from gnntrain.tasks.node_classification import positive_name
from gnntrain.training.checkpoint import epoch_of, load_checkpoint, load_weights, weights_of
from gnntrain.training.evaluation import (
    Inferred,
    SplitMetrics,
    take_marks,
    warn_of_constant,
)

_log = logging.getLogger(__name__)

__all__ = ["BestModel", "Inferred", "infer", "load_best"]


class BestModel:
    """The best model of a run over a graph, ready to compute on this process alone.

    Args:
        run: The run.
        epoch: Its best epoch.
        config: Its configuration, perhaps with another data set.
        graph: The graph to compute on.
        signature: The model's inputs and outputs.
        scratch_dir: The folder for activations that do not fit in memory.

    Attributes:
        task: The task of the outputs.
        positive_class: The name of the positive class of two; None: the task is not binary.
        model: With initial weights; `load_best` loads the trained ones.
    """

    def __init__(
        self,
        run: RunDirectory,
        epoch: int,
        config: Config,
        graph: Graph,
        signature: ModelSignature,
        scratch_dir: Path,
    ) -> None:
        self.run = run
        self.epoch = epoch
        self.graph = graph
        self.signature = signature
        device = _device_here(config.trainer)
        config = _for_one_process(config)
        select(kernel_choice(config, device.type), device.type)
        context = DistributedContext(device=device)
        self._config, self._context, self._scratch_dir = config, context, scratch_dir
        self.task = build_task(config, graph, signature, signature.target_scale)
        self.positive_class = positive_name(signature, config.task.positive_class)
        with generator_kept(device):
            self.model = build_model(config, self.task, graph, context)
        self._loaders = build_loaders(config, self.task, self.model, graph, context)

    def evaluate(self) -> tuple[SplitMetrics, str]:
        """The metrics of all splits, see the `evaluation` keys; and `Evaluator.estimated`."""
        parts = self._config, self.task, self.model, self._loaders
        evaluator = build_evaluator(*parts, self.graph, self._context, self._scratch_dir)
        metrics = evaluator.evaluate(self.model)
        if constant := take_marks(metrics):
            warn_of_constant(constant, self.epoch)
        return metrics, evaluator.estimated

    def infer(self, *, embed: bool = False) -> Inferred:
        """The outputs of every node, exactly: over all in-neighbours.

        Args:
            embed: Keep the rows that enter the last layer, too.

        Raises:
            UserError: A plain PyG model has no embeddings.
        """
        parts = self._config, self.task, self.model, self._loaders
        evaluator = build_exact_evaluator(*parts, self.graph, self._context, self._scratch_dir)
        return evaluator.infer(self.model, embed=embed)


@alone_in_process()
def infer(
    run_dir: str | Path,
    *,
    config: Config | None = None,
    data: object = None,
    embed: bool = False,
    scratch_dir: Path | None = None,
) -> Inferred:
    """Compute the outputs of a run's best model for every node, exactly: over all in-neighbours.

    Layer by layer, in chunks. Memory: two layers' activations, which go to disk beyond
    `evaluation.memory_limit`, and a chunk.

    Args:
        run_dir: The run: a directory, a name under `runs/`, or `latest`.
        config: The run's configuration, perhaps with another data set, which need not have labels.
            None: the run's own.
        data: Another graph as an object, see `gnntrain.run.train`; it is prepared as the run's was.
        embed: Keep the rows that enter the last layer, too.
        scratch_dir: The folder for activations that do not fit in memory; None: the run directory.

    Returns:
        Predictions, probabilities, logits and ids; on the CPU, a large matrix mapped from disk. And
        the embeddings if asked for.

    Raises:
        UserError: The graph is missing, or does not fit the model.
    """
    best = load_best(run_dir, config=config, scratch_dir=scratch_dir, data=data)
    return best.infer(embed=embed)


def load_best(
    run_dir: str | Path,
    *,
    config: Config | None = None,
    scratch_dir: Path | None = None,
    data: object = None,
    reread: bool = False,
    strict: bool = False,
) -> BestModel:
    """Load a run's best model over its graph, or over another one; see `infer` and `predict`.

    Another graph that is unlike the run's is told; `strict`: refused.
    """
    run = RunDirectory.open(run_dir)
    saved = from_dict(run.config(), saved=True)
    if config is None:
        config = saved
    refuse_other_arguments(config)
    checkpoint = run.best_checkpoint()
    state = load_checkpoint(checkpoint)
    if data is not None:
        config = config.model_copy(update={"dataset": prepared_alike(config.dataset)})
    moved: list[Axis] = []
    is_runs = data is None and config.dataset == saved.dataset
    is_other = not is_runs or (reread and has_changed(run, saved.dataset))
    if not is_other:
        graph = open_run_store(run, saved.dataset).store
        signature = ModelSignature.of(graph)
    else:
        signature = model_signature(run, saved.dataset)
        dataset = config.dataset
        made_by = _filling(signature, dataset)
        if signature.schema is not None and signature.schema.target != NODE:
            dataset = dataset.for_target(signature.schema.target)  # nodes may be without labels
        opened = prepare_store(
            dataset,
            labelled=False,
            preprocessing=made_by,
            lowest=signature.lowest,
            data=data,
        )
        graph = opened.store
        learns_rows = config.model.is_hetero
        subject = "The model"
        there = refuse_other_types(signature, graph, subject=subject)
        graph = _in_types_of(graph, signature.schema)
        for name in there.node_types:
            rows = None
            if learns_rows:
                rows = learnt_rows(run, signature, graph, name, signature.num_outputs)
            if rows is not None and rows.is_complete:
                moved.append(rows)
            else:
                refuse_other_nodes(
                    signature, there, graph, name, subject=subject, learns_rows=learns_rows
                )
    torch.set_num_threads(config.distributed.threads or available_cores())
    epoch = epoch_of(state, checkpoint)
    best = BestModel(run, epoch, config, graph, signature, scratch_dir or run.path)
    if is_other:
        _tell_unlike(graph, signature, reads_weights=best.model.needs.weight, strict=strict)
    weights = weights_of(state, checkpoint)
    for weight, places in places_of(config, best.model, moved).items():
        fresh = best.model.state_dict()[weight].cpu()
        weights[weight], is_taken = placed(weights[weight], fresh, places)
        assert is_taken.all(), f"{weight} does not count nodes alone"
    load_weights(best.model, state, checkpoint)
    return best


def _filling(signature: ModelSignature, dataset: DatasetConfig) -> AnyPreprocessing | None:
    """The preprocessing of the run; where the run had no missing values and this graph may have
    some, with their means over the run's training nodes."""
    made_by = signature.preprocessing_by_type or signature.preprocessing
    missing = getattr(dataset, "missing", "refuse")
    if missing == "refuse":
        return made_by
    if dataset.normalize_features:  # what is known are not the means of the table's numbers
        signature = replace(signature, statistics={})
    if made_by is None and len(signature.statistics) == 1:  # columns without names
        columns = [FeatureColumn(name=str(place)) for place in range(signature.num_features)]
        made_by = Preprocessing(columns=tuple(columns), has_names=False)
    if made_by is None:
        return None
    by_type = made_by if isinstance(made_by, Mapping) else {NODE: made_by}
    filling = {name: _filled(one, signature, name, missing) for name, one in by_type.items()}
    return filling if isinstance(made_by, Mapping) else filling[NODE]


def _filled(
    made_by: Preprocessing, signature: ModelSignature, node_type: NodeType, missing: str
) -> Preprocessing:
    if made_by.fills is not None:
        return made_by
    known = signature.statistics.get(node_type)
    if missing == "indicator" or (missing == "mean" and known is None):
        lacks = "without indicators" if missing == "indicator" else "without its means kept"
        raise UserError(
            f"dataset.missing={missing}: the model was trained {lacks}.",
            f"Use dataset.missing={'mean' if known else 'zero'}, or fill in the missing values.",
        )
    fills = np.zeros(made_by.num_numbers)
    if missing == "mean" and known is not None:
        fills = np.array(known.means)[np.array(made_by.is_number)]
        if made_by.means is not None:
            fills = fills * np.array(made_by.stds) + np.array(made_by.means)
    return made_by.model_copy(update={"fills": tuple(fills.tolist())})


def _tell_unlike(
    graph: StoredGraph, signature: ModelSignature, *, reads_weights: bool, strict: bool
) -> None:
    """Warn where another graph is unlike the one that the model was trained on.

    Raises:
        UserError: It is, and `strict`.
    """
    told = [*edge_warnings(graph)]
    has_weights = ModelSignature.of(graph).has_edge_weight
    if reads_weights and has_weights != signature.has_edge_weight:
        here, there = ("no ", "") if signature.has_edge_weight else ("", "no ")
        told.append(f"Edges have {here}weights, and had {there}weights in training.")
    for name, known in signature.statistics.items():
        of_type = f"{name}." if graph.is_hetero else ""
        sentences = known.unlike(graph.nodes[name], graph.meta.preprocessing.get(name))
        told += [of_type + sentence for sentence in sentences]
    if told and strict:
        raise UserError(
            f"The graph {graph.dataset} is unlike the one that the model was trained on: "
            f"{'; '.join(text.rstrip('.') for text in told)}.",
            "Without --strict, these are warnings.",
        )
    for text in told:
        _log.warning("%s", text)


def _device_here(trainer: TrainerConfig) -> torch.device:
    """A GPU, unless training was to use none; also one of another kind than training had."""
    wants_gpu = trainer.device != "cpu" and trainer.gpus != 0
    kind = accelerator() if wants_gpu else None
    return torch.device("cpu") if kind is None else torch.device(kind, 0)


def _for_one_process(config: Config) -> Config:
    """The configuration without what other GPUs, or several, can do: every device draws the same
    batches, and computes the same outputs but for rounding."""
    features, sampler = config.features, config.sampler
    if features.placement != "memmap":
        features = features.model_copy(update={"placement": "auto"})
    if sampler.backend == "triton":
        sampler = sampler.model_copy(update={"backend": "auto"})
    if sampler.topology != "host":
        sampler = sampler.model_copy(update={"topology": "auto"})
    compute = ComputeConfig() if config.compute.kernels == "triton" else config.compute
    parts = {"features": features, "sampler": sampler, "compute": compute}
    return config.model_copy(update=parts)


def _in_types_of(graph: StoredGraph, schema: GraphSchema | None) -> StoredGraph:
    """The types of a graph that a model was trained on, in their order."""
    if schema is None or not graph.is_hetero:
        return graph
    nodes = {name: graph.nodes[name] for name in schema.node_types}
    if list(nodes) == list(graph.nodes) and schema.edge_types == tuple(graph.edges):
        return graph
    return replace(
        graph, nodes=nodes, edges={name: graph.edges[name] for name in schema.edge_types}
    )
