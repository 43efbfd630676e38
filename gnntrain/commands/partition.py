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
    from gnntrain.data.partitioned_graph import Method
    from gnntrain.reporting.tables import Section

_METHODS: tuple[Method, ...] = ("streaming", "metis", "random")


def _partition(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    config = compose_config(arguments.overrides, arguments.config_dirs, for_here=False).config
    from gnntrain.reporting.tables import print_sections

    method = arguments.method or _METHODS[0]
    sections = _sections(config.dataset, arguments.parts, expanded(arguments.out), method)
    print_sections(sections)
    return 0


def _sections(
    dataset: DatasetConfig, num_parts: int, out: Path, method: Method
) -> Iterator[Section]:
    """Cut the graph; what is to be said of it comes as soon as it is known."""
    from gnntrain.data.partitioning.build import partition, refuse_mistakes
    from gnntrain.reporting.tables import Section, pairs, rows
    from gnntrain.reporting.text import format_bytes, format_seconds, shown_path
    from gnntrain.run_store import prepare_store

    began = time.perf_counter()
    store = prepare_store(dataset).store
    refuse_mistakes(store, num_parts, out, method)
    graph = f"{store.dataset}: {store.num_nodes:,} nodes, {store.num_edges:,} edges"
    about = [("graph", graph), ("parts", f"{num_parts}, by the method {method}")]
    yield Section("partition", [pairs(about)])
    parts = partition(store, num_parts, out, method)
    meta = parts.meta
    share = meta.cut_edges / max(parts.num_edges, 1)
    sizes = {
        "nodes": [part.num_nodes for part in meta.parts],
        "edges": [part.num_edges for part in meta.parts],
        "training nodes": [part.num_train for part in meta.parts],
    }
    balance = ", ".join(
        f"{name} {max(found) * len(found) / sum(found):.2f}"
        for name, found in sizes.items()
        if any(found)
    )
    result = [
        ("cut", f"{meta.cut_edges:,} edges between parts ({share:.1%})"),
        ("balance", f"{balance} (largest part over the mean)"),
    ]
    yield Section("result", [pairs(result)])
    bytes_ = (format_bytes(part.num_bytes) for part in meta.parts)
    numbers = ((f"{number:,}" for number in found) for found in sizes.values())
    cells = zip(map(str, range(num_parts)), *numbers, bytes_, strict=True)
    yield Section("parts", [rows(("part", *sizes, "size"), [*cells])])
    yield Section(
        f"written to {shown_path(parts.path)} in {format_seconds(time.perf_counter() - began)}", []
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
