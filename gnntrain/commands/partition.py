"""Cut a graph into parts, for several machines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gnntrain.commands.base import Arguments, Command, option
from gnntrain.paths import expanded

if TYPE_CHECKING:
    from pathlib import Path

    from gnntrain.config import DatasetConfig
    from gnntrain.data.partitioned_graph import Method, PartitionedGraph, PartitionMeta
    from gnntrain.data.store import StoredGraph
    from gnntrain.reporting.tables import Section

_METHODS = ("streaming", "metis", "random")


def _partition(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    config = compose_config(arguments.overrides, arguments.config_dirs, for_here=False).config
    from gnntrain.reporting.tables import print_sections

    out = expanded(arguments.out)
    print_sections(_sections(config.dataset, arguments.parts, out, arguments.method or _METHODS[0]))
    return 0


def _sections(
    dataset: DatasetConfig, num_parts: int, out: Path, method: Method
) -> Iterator[Section]:
    """Cut the graph; what is to be said of it comes as soon as it is known."""
    from gnntrain.data.partitioning.build import partition, refuse_mistakes
    from gnntrain.run_store import prepare_store

    began = time.perf_counter()
    store = prepare_store(dataset).store
    refuse_mistakes(store, num_parts, out, method)
    yield _graph(store, num_parts, method)
    parts = partition(store, num_parts, out, method)
    yield from _result(parts, time.perf_counter() - began)


def _graph(store: StoredGraph, num_parts: int, method: Method) -> Section:
    from gnntrain.reporting.tables import Section, pairs

    rows = [
        ("graph", f"{store.dataset}: {store.num_nodes:,} nodes, {store.num_edges:,} edges"),
        ("parts", f"{num_parts}, by the method {method}"),
    ]
    return Section("partition", [pairs(rows)])


def _result(parts: PartitionedGraph, seconds: float) -> Iterator[Section]:
    from gnntrain.reporting.tables import Section, pairs, rows
    from gnntrain.reporting.text import format_bytes, format_seconds, shown_path

    meta = parts.meta
    share = meta.cut_edges / max(parts.num_edges, 1)
    result = [
        ("cut", f"{meta.cut_edges:,} edges between parts ({share:.1%})"),
        ("balance", f"{_balance(meta)} (largest part over the mean)"),
    ]
    yield Section("result", [pairs(result)])
    header = ("part", "nodes", "edges", "training nodes", "size")
    cells = (
        (f"{number}", f"{part.num_nodes:,}", f"{part.num_edges:,}", f"{part.num_train:,}",
         format_bytes(part.num_bytes))
        for number, part in enumerate(meta.parts)
    )  # fmt: skip
    yield Section("parts", [rows(header, cells)])
    yield Section(f"written to {shown_path(parts.path)} in {format_seconds(seconds)}", [])


def _balance(meta: PartitionMeta) -> str:
    """How much larger the largest part is than the mean, by nodes, edges and training nodes."""
    sizes = {
        "nodes": [part.num_nodes for part in meta.parts],
        "edges": [part.num_edges for part in meta.parts],
        "training nodes": [part.num_train for part in meta.parts],
    }
    means = {name: sum(found) / len(found) for name, found in sizes.items()}
    return ", ".join(
        f"{name} {max(found) / means[name]:.2f}" for name, found in sizes.items() if means[name]
    )


COMMAND = Command(
    "[group=option] [group.key=value] ... --parts N --out DIR [--method METHOD]",
    "cut a graph into parts, for distributed.graph=partitioned",
    "Takes the data set's keys that training takes. Nodes are numbered anew, so that each part is "
    "a contiguous range; it has the features, the labels and the in-edges of its nodes. No part "
    "has more than about 1.1 times the mean number of nodes, of edges, and of training nodes. "
    "The method streaming needs some bytes of memory a node. metis may cut fewer edges; it needs "
    "the package pymetis, and the graph several times over in memory. random cuts the most. A "
    "machine needs its own parts (DIR/part0, ...) and the files beside them.",
    [
        "gnntrain partition --parts 2 --out parts",
        "gnntrain partition dataset.num_nodes=5000 --parts 4 --out parts4 --method random",
    ],
    _partition,
    options=[
        option("--parts", "N", "number of parts, at most 256", type=int, required=True),
        option("--out", "DIR", "where to; must not be there yet, or empty", required=True),
        option("--method", "METHOD", "streaming (default), metis or random", choices=_METHODS),
    ],
)
