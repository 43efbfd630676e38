"""A graph in parts on disk: a machine maps its own parts, and knows where all nodes are.

`gnntrain partition` numbers the nodes anew, so that each part is a contiguous range of nodes; a
part holds the in-edges of its nodes. Within a part, nodes are in their original order, and a node's
in-edges too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from gnntrain.data.graph import (
    SPLITS,
    AnyArray,
    FeatureDtype,
    Float32Array,
    Graph,
    Int64Array,
    IntArray,
)
from gnntrain.data.parts_meta import (
    PartitionError,
    PartitionMeta,
    part_folder,
    read_partition,
)
from gnntrain.data.store import names_of
from gnntrain.data.store_files import ArrayFolder, is_sealed, map_array, verify
from gnntrain.data.store_meta import ArrayMeta, StoreError


@dataclass(frozen=True, eq=False)
class Part:
    """One part's nodes and their in-edges: read-only views of mapped pages.

    Attributes:
        number: Which part.
        nodes: Its nodes, a range of new numbers.
        indptr: int64 `[len(nodes) + 1]`: the in-edges of its i-th node are
            `indices[indptr[i]:indptr[i + 1]]`.
        indices: int32, or int64 for more than 2³¹ nodes in all parts: the new number of each
            in-edge's source, in the order of the original graph; not ascending.
        edge_weight: float32, in the order of `indices`, or None.
        features: `[len(nodes), num_features]`, see `gnntrain.data.graph.Nodes`.
        labels: See `gnntrain.data.graph.Nodes`.
        gcn_norm: float32 `[len(nodes)]`, see `gnntrain.data.graph.Edges`.
        original: int64 `[len(nodes)]`, ascending: each node's number in the original graph.
        node_ids: The user's own ids, int64 or bytes (UTF-8) `[len(nodes)]`, or None.
    """

    number: int
    nodes: range
    indptr: Int64Array
    indices: IntArray
    edge_weight: Float32Array | None
    features: AnyArray
    labels: AnyArray
    gcn_norm: Float32Array
    original: Int64Array
    node_ids: AnyArray | None

    @classmethod
    def of(cls, graph: Graph, number: int, nodes: range) -> Part:
        """Consecutive nodes of a whole graph as a part of it: views, but for numbers a node."""
        first, last = int(graph.indptr[nodes.start]), int(graph.indptr[nodes.stop])
        weight, ids = graph.edge_weight, graph.node_ids
        rows = slice(nodes.start, nodes.stop)
        return cls(
            number=number,
            nodes=nodes,
            indptr=graph.indptr[nodes.start : nodes.stop + 1] - first,
            indices=graph.indices[first:last],
            edge_weight=None if weight is None else weight[first:last],
            features=graph.features[rows],
            labels=graph.labels[rows],
            gcn_norm=graph.gcn_norm[rows],
            original=np.arange(nodes.start, nodes.stop),
            node_ids=None if ids is None else ids[rows],
        )


@dataclass(frozen=True, eq=False)
class Parts:
    """A graph in parts, of which some are open here.

    Pickled, it is its path: the other process maps the same files.

    Attributes:
        path: The folder that `gnntrain partition` has written.
        meta: The content of its `partition.json`.
        opened: The parts that are open, consecutive.
        starts: int64 `[num_parts + 1]`: part p has the nodes `starts[p] … starts[p + 1] − 1`.
        splits: New numbers of the nodes of "train", "val" and "test", int64, each split in its
            original order (ascending original numbers).
        class_names: See `gnntrain.data.graph.Graph`.
    """

    path: Path
    meta: PartitionMeta
    opened: tuple[Part, ...]
    starts: Int64Array
    splits: Mapping[str, Int64Array]
    class_names: list[str] | list[int] | None

    @classmethod
    def open(cls, path: Path, parts: range | None = None, *, check: bool = True) -> Parts:
        """Map the given parts without reading their arrays; other parts need not be there.

        Args:
            path: The folder that `gnntrain partition` has written.
            parts: Consecutive parts to open; None: all. None at all opens what is known of the
                whole graph alone: `range(0)`.
            check: Verify all checksums if a file was touched since they were last verified.
                False in worker processes, whose parent has just done so.

        Raises:
            PartitionError: Something is missing, damaged, of another format version, or there are
                not that many parts.
        """
        path = Path(path).absolute()
        with _as_partition_error(path):
            meta = read_partition(path)
            parts = range(len(meta.parts)) if parts is None else parts
            if len(parts) and not 0 <= parts[0] <= parts[-1] < len(meta.parts):
                raise StoreError(path, f"it has {len(meta.parts)} parts, not part {parts[-1]}")
            shared = _open_folder(path, Folder(meta.arrays, meta.digest), check=check)
            opened = tuple(_open_part(path, meta, number, check=check) for number in parts)
        return cls(
            path=path,
            meta=meta,
            opened=opened,
            starts=meta.starts,
            splits={name: shared[f"split_{name}"] for name in SPLITS},
            class_names=names_of(shared.get("class_names")),
        )

    @property
    def num_parts(self) -> int:
        return len(self.meta.parts)

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return self.meta.num_nodes

    @property
    def num_edges(self) -> int:
        """Edges of the whole graph."""
        return self.meta.num_edges

    @property
    def nodes(self) -> range:
        """The nodes of the open parts, a range of new numbers."""
        return (
            range(self.opened[0].nodes.start, self.opened[-1].nodes.stop)
            if self.opened
            else range(0)
        )

    @property
    def feature_dtype(self) -> FeatureDtype:
        """See `gnntrain.data.graph.Nodes`."""
        return cast(FeatureDtype, self.meta.parts[0].arrays["features"].dtype)

    @property
    def has_edge_weight(self) -> bool:
        return "edge_weight" in self.meta.parts[0].arrays

    def split(self, name: str) -> Int64Array:
        """See `splits`."""
        return self.splits[name]

    def part_of(self, nodes: IntArray) -> Int64Array:
        """The part of each node: int64 `[n]` for new numbers `[n]`."""
        return np.searchsorted(self.starts, nodes, side="right") - 1

    def __reduce__(self) -> tuple[Any, ...]:
        numbers = [part.number for part in self.opened]
        parts = range(numbers[0], numbers[-1] + 1) if numbers else range(0)
        return _reopen, (self.path, parts)


class Folder(NamedTuple):
    """A folder of arrays, see `gnntrain.data.store_files.ArrayFolder`."""

    arrays: Mapping[str, ArrayMeta]
    digest: str


def _reopen(path: Path, parts: range) -> Parts:
    return Parts.open(path, parts, check=False)


def _open_folder(folder: Path, content: ArrayFolder, *, check: bool) -> dict[str, AnyArray]:
    arrays = {name: map_array(folder, array) for name, array in content.arrays.items()}
    if check and not is_sealed(folder, content):
        verify(folder, content)
    return arrays


def _open_part(path: Path, meta: PartitionMeta, number: int, *, check: bool) -> Part:
    content = Folder(meta.parts[number].arrays, meta.digest)
    arrays = _open_folder(part_folder(path, number), content, check=check)
    first, stop = meta.starts[number : number + 2].tolist()
    return Part(
        number=number,
        nodes=range(first, stop),
        indptr=arrays["indptr"],
        indices=arrays["indices"],
        edge_weight=arrays.get("edge_weight"),
        features=arrays["features"],
        labels=arrays["labels"],
        gcn_norm=arrays["gcn_norm"],
        original=arrays["original"],
        node_ids=arrays.get("node_ids"),
    )


@contextmanager
def _as_partition_error(path: Path) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        where = "" if error.path == path else f"{error.path.name}: "
        raise PartitionError(path, f"{where}{error.reason}") from error
