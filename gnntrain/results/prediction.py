"""What a run's best model predicts, node by node, in a file: the command `predict`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.config import Config
from gnntrain.config.problems import did_you_mean
from gnntrain.data.graph import SPLITS, AnyArray, Int64Array
from gnntrain.data.read.node_list import read_nodes
from gnntrain.devices import alone_in_process
from gnntrain.errors import UserError
from gnntrain.inference import load_best
from gnntrain.paths import expanded
from gnntrain.results.files import Result, check_target, write_result
from gnntrain.tasks.base import Column, Columns

EMBEDDINGS = "embeddings"


@dataclass(frozen=True)
class Prediction:
    """What was written: the file, what it says of each node, of how many nodes; the run as a person
    would type it, its best epoch, and the name of the graph's data set."""

    path: Path
    what: str
    num_rows: int
    run: str
    epoch: int
    dataset: str


@alone_in_process()
def predict(
    run_dir: str | Path,
    out: str | Path,
    *,
    what: str | None = None,
    nodes: str | Path = "all",
    config: Config | None = None,
    data: object = None,
    reread: bool = False,
    strict: bool = False,
    spreadsheet_safe: bool = False,
) -> Prediction:
    """Write what a run's best model predicts.

    Computed exactly, over all in-neighbours, and written a chunk at a time: neither a graph nor a
    result need fit in memory.

    Args:
        run_dir: The run: a directory, a name under `runs/`, or `latest`.
        out: The file: npz, npy, Parquet (`.parquet`, `.pq`) or CSV, by its ending. It must not be
            there yet.
        what: Of a classification "class" (the most probable one and its probability; where a node
            has several labels, 0 or 1 for each), "probabilities" or "logits"; of a regression
            "value", in the targets' units; of both "embeddings": the rows that enter the model's
            last layer. None: "class" or "value".
        nodes: "all", "train", "val", "test", or a file of ids, in whose order they are written.
        config: The run's configuration with other keys: another data set predicts for that graph,
            which may be without labels. None: as the run was.
        data: Another graph as an object, see `gnntrain.run.train`; it is prepared as the run's was.
        reread: Predict for the files of the data set as they are today, also where they are those
            of the run and have changed since.
        strict: Refuse another graph that is unlike the run's, which is else a warning.
        spreadsheet_safe: See `Result`.

    Raises:
        UserError: A word, a file or a graph that is not as it must be.
        RunError: The disk is full.
    """
    path = expanded(out)
    check_target(path)
    best = load_best(
        run_dir, config=config, scratch_dir=path.parent, data=data, reread=reread, strict=strict
    )
    graph, words = best.graph, (*best.task.predictions(), EMBEDDINGS)
    what = words[0] if what is None else what
    if what not in words:
        hint = did_you_mean(what, words) or f"It is one of {', '.join(words)}."
        kind = "regression" if best.signature.task == "continuous" else "classification"
        raise UserError(f"--what {what} is not known of a {kind}.", hint[0].upper() + hint[1:])

    chosen: Int64Array | int = len(graph.target_nodes)
    if nodes in SPLITS:
        chosen = graph.split(str(nodes))
        if not len(chosen):
            raise UserError(
                f"--nodes {nodes}: the graph {graph.dataset} has no {nodes} nodes.",
                "Leave it out, or give a file of node ids.",
            )
    elif nodes != "all":
        if not expanded(nodes).is_file():
            raise UserError(
                f"--nodes {nodes}: there is no such file.",
                "It is all, train, val, test, or a file of node ids.",
            )
        chosen = read_nodes(expanded(nodes), graph)

    # The ids as the user gave them: of bytes, a character takes one or more.
    dtype = np.dtype(np.int64) if graph.node_ids is None else graph.node_ids.dtype
    dtype = np.dtype(f"U{dtype.itemsize}") if dtype.kind == "S" else dtype
    columns = [Column("node", dtype, lambda nodes: graph.ids_of(nodes.numpy()))]
    outputs = best.infer(embed=what == EMBEDDINGS)
    if what == EMBEDDINGS:
        rows = outputs.embeddings
        assert rows is not None  # they were asked for
        width = rows.num_features if isinstance(rows, LazyFeatures) else rows.shape[1]
        names = [f"embedding_{i}" for i in range(width)]
        made = Columns([Column(EMBEDDINGS, np.dtype(np.float32), Tensor.numpy, names)])
    else:
        rows, made = outputs.outputs, outputs.columns(what)
    for column in made.columns:
        columns.append(replace(column, values=partial(_values, column, rows)))
    result = Result(chosen, columns, made.notes, spreadsheet_safe)
    write_result(path, result)
    return Prediction(path, what, result.num_rows, best.run.shown, best.epoch, graph.dataset)


def _values(column: Column, rows: Tensor | LazyFeatures, nodes: Tensor) -> AnyArray:
    taken = rows.select(nodes).whole() if isinstance(rows, LazyFeatures) else rows[nodes]
    return column.values(taken)
