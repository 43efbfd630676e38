"""The outputs of a run's best model for the nodes of a graph: the run's own, or another one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gnntrain import run_store
from gnntrain.build import build_evaluator, build_loaders, build_model, build_task
from gnntrain.compute.selection import select
from gnntrain.config import Config, DatasetConfig, FilesConfig, checks, from_dict
from gnntrain.data.graph import EDGE, NODE, Graph, Int64Array, NodeType
from gnntrain.data.store import StoredGraph
from gnntrain.data.summary import edge_warnings
from gnntrain.devices import accelerator, alone_in_process, generator_kept
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.limits import available_cores
from gnntrain.models import AnyModel
from gnntrain.models.embedding import embedding_tables
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.selfcheck.choice import kernel_choice
from gnntrain.tasks import Task
from gnntrain.tasks.node_classification import positive_name
from gnntrain.training.checkpoint import load_checkpoint, load_weights
from gnntrain.training.evaluation import Evaluator, Inferred

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BestModel:
    """The best model of a run over a graph, ready to compute on this process alone."""

    run: RunDirectory
    epoch: int
    graph: Graph  # to compute on
    signature: run_store.ModelSignature
    task: Task  # of the outputs
    positive_class: str | int | None  # the name of that of two; None: the task is not binary
    model: AnyModel  # with the trained weights
    evaluator: Callable[..., Evaluator]  # makes that of `evaluation`, or (`exact`) the exact one

    def infer(self, *, embed: bool = False) -> Inferred:
        """The outputs of every node as of `infer`; a UserError where a plain PyG model is asked for
        embeddings."""
        return self.evaluator(exact=True).infer(self.model, embed=embed)


@alone_in_process()
def infer(
    run_dir: str | Path,
    *,
    config: Config | None = None,
    data: object = None,
    embed: bool = False,
) -> Inferred:
    """Compute the outputs of a run's best model for every node, exactly: over all in-neighbours,
    layer by layer, in chunks. Memory: a chunk, and two layers' activations, which go to the run
    directory beyond `evaluation.memory_limit`.

    Args:
        run_dir: The run: a directory, a name under `runs/`, or `latest`.
        config: The run's configuration, perhaps with another data set, which need not have labels.
            None: the run's own.
        data: Another graph as an object, see `gnntrain.run.train`; it is prepared as the run's was.
        embed: Keep the rows that enter the last layer, too.

    Returns:
        Predictions, probabilities, logits and ids, and the embeddings if asked for; on the CPU, a
        large matrix mapped from disk.

    Raises:
        UserError: The graph is missing, or does not fit the model.
    """
    return load_best(run_dir, config=config, data=data).infer(embed=embed)


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

    The first way in which another graph is unlike the run's is told; `strict`: refused.
    """
    run = RunDirectory.open(run_dir)
    saved = from_dict(run.config(), saved=True)
    config = saved if config is None else config
    checks.refuse_other_arguments(config)
    checkpoint = run.best_checkpoint()
    state = load_checkpoint(checkpoint)
    weights = state["model"]
    if data is not None:
        keys = set(DatasetConfig.model_fields) - {"name", "root"}
        keys |= {"weight_column"} if run_store.is_object(config.dataset) else set()
        alike = FilesConfig(name="data", **{key: getattr(config.dataset, key) for key in keys})
        config = config.model_copy(update={"dataset": alike})
    record, is_other = run.store_record(), data is not None or config.dataset != saved.dataset
    if reread and record is not None and not is_other:  # its files may hold another graph today
        is_other = not run_store.is_unchanged(record, saved.dataset)
    if is_other:
        signature, dataset = run_store.model_signature(run), config.dataset
        made_by, missing = signature.preprocessing, getattr(dataset, "missing", "refuse")
        if missing != "refuse" and all(one.fills is None for one in made_by.values()):
            raise UserError(
                f"dataset.missing={missing}: the model was trained on a graph without missing "
                "values.",
                "Leave the key out, and fill in the values.",
            )
        is_typed = [*signature.schema.node_types, *signature.schema.edge_types] != [NODE, EDGE]
        if is_typed:
            # Its nodes may be without labels.
            target, quantities = signature.schema.target, dataset.quantities
            dataset = dataset.for_target(target, quantities=quantities)
        graph = run_store.prepare_store(
            dataset,
            labelled=False,
            preprocessing=made_by if is_typed else made_by.get(NODE),
            lowest=signature.lowest,
            data=data,
        ).store
        run_store.refuse_other_types(signature, graph, subject="The model")
        if graph.is_hetero:  # the run's types, in their order
            graph = replace(
                graph,
                nodes={name: graph.nodes[name] for name in signature.schema.node_types},
                edges={name: graph.edges[name] for name in signature.schema.edge_types},
            )
        for name, width in graph.schema.num_features.items():
            if width != (known := signature.schema.num_features[name]):
                of_type = f" of type {name}" if graph.is_hetero else ""
                raise UserError(
                    f"The model takes {known} features a node{of_type}; the graph {graph.dataset} "
                    f"has {width}.",
                    "Give the features it was trained on, in the same order.",
                )
    else:
        graph = run_store.open_run_store(record, saved.dataset).store
        signature = run_store.ModelSignature.of(graph)
    torch.set_num_threads(config.distributed.threads or available_cores())
    # One process, with the device of this machine, on which outputs are the same but for rounding:
    # a GPU, also of another kind than training had, unless that was to use none. What only its own
    # kind, or several, can do is left out.
    wants_gpu = config.trainer.device != "cpu" and config.trainer.gpus != 0
    kind = accelerator() if wants_gpu else None
    context = DistributedContext(device=torch.device(kind, 0) if kind else torch.device("cpu"))
    for section, key, is_left_out in (
        ("features", "placement", config.features.placement != "memmap"),
        ("sampler", "backend", config.sampler.backend == "triton"),
        ("sampler", "topology", config.sampler.topology != "host"),
        ("compute", "kernels", config.compute.kernels == "triton"),
    ):
        if is_left_out:
            changed = getattr(config, section).model_copy(update={key: "auto"})
            config = config.model_copy(update={section: changed})
    select(kernel_choice(config, context.device.type), context.device.type)
    task = build_task(config, graph, signature, signature.target_scale)
    with generator_kept(context.device):
        model = build_model(config, task, graph, context)
    loaders = build_loaders(config, task, model, graph, context)
    if is_other:
        names = {id(table): name for name, table in embedding_tables(model)}
        for name, table in getattr(model, "tables", {}).items():
            if signature.has_other_nodes(graph, name):
                store = None if record is None else run_store.recorded_store(record)
                rows = _learnt_rows(store, signature, graph, name)
                key = f"{names[id(table)]}.weight"
                weights[key] = weights[key][torch.from_numpy(rows)]
        unlike = next(_differences(graph, signature, reads_weights=model.needs.weight), None)
        if unlike is not None and strict:
            raise UserError(
                f"The graph {graph.dataset} is unlike the one that the model was trained on: "
                f"{unlike}",
                "Without --strict, this is a warning.",
            )
        if unlike is not None:
            _log.warning("%s", unlike)
    load_weights(model, state, checkpoint)
    parts = config, task, model, loaders, graph, context, scratch_dir or run.path
    evaluator, epoch = partial(build_evaluator, *parts), state["epoch"]
    positive = positive_name(signature, config.task.positive_class)
    return BestModel(run, epoch, graph, signature, task, positive, model, evaluator)


def _learnt_rows(
    store: StoredGraph | None, signature: run_store.ModelSignature, graph: Graph, name: NodeType
) -> Int64Array:
    """By node of a type without features the row that the model has learnt for it, found by its id
    in the run's `store`; a UserError where it has none."""
    if store is not None:
        both = store.nodes[name], graph.nodes[name]
        kinds = {nodes.ids.dtype.kind for nodes in both if nodes.ids is not None}
        if kinds == {"i"} or all(nodes.ids is not None for nodes in both):
            # Ids 0, 1, … are not stored.
            before, after = (np.arange(len(n)) if n.ids is None else n.ids for n in both)
            if before.dtype.kind != after.dtype.kind:  # ids that all were numbers, now are texts
                before, after = before.astype(bytes), after.astype(bytes)
            order = np.argsort(before, kind="stable")
            places = np.searchsorted(before, after, sorter=order)
            rows: Int64Array = order[np.minimum(places, len(before) - 1)]
            if np.array_equal(before[rows], after):
                return rows
    kind = f" of type {name}" if graph.is_hetero else ""
    raise UserError(
        f"The model has learnt a row for each of the {signature.schema.num_nodes[name]:,} nodes"
        f"{kind} that it was trained on, which have no features; the {len(graph.nodes[name]):,} of "
        f"the graph {graph.dataset} are others.",
        "Give these nodes features, and train on them.",
    )


def _differences(
    graph: StoredGraph, signature: run_store.ModelSignature, *, reads_weights: bool
) -> Iterator[str]:
    """Sentences: in what another graph is unlike the one that the model was trained on."""
    yield from edge_warnings(graph)
    has_weights = any(edges.weight is not None for edges in graph.edges.values())
    if reads_weights and has_weights != signature.has_edge_weight:
        here, there = ("no ", "") if signature.has_edge_weight else ("", "no ")
        yield f"Edges have {here}weights, and had {there}weights in training."
    for name, known in signature.statistics.items():
        of_type = f"{name}." if graph.is_hetero else ""
        for text in known.unlike(graph.nodes[name], graph.meta.preprocessing.get(name)):
            yield f"{of_type}{text}."
