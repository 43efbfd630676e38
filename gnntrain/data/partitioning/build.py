"""Cutting a graph into parts on disk: mistakes told before anything is computed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnntrain.data.arrays import HEADER_BYTES
from gnntrain.data.partitioning.assign import assign, refuse_number
from gnntrain.data.partitioning.metis import refuse_metis
from gnntrain.data.partitioning.union import union_of
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.data.parts import Method, Parts
from gnntrain.data.store import StoredGraph
from gnntrain.data.store_place import free_bytes
from gnntrain.errors import UserError


def partition(store: StoredGraph, num_parts: int, out: Path, method: Method) -> Parts:
    """Cut a graph into parts, and write them to the folder `out`, as a whole or not at all.

    Args:
        store: The graph.
        num_parts: Number of parts, at most `gnntrain.data.partitioning.assign.MAX_PARTS`.
        out: The folder; missing or empty.
        method: How nodes are assigned to parts, see `gnntrain.data.partitioning.assign.assign`.

    Raises:
        UserError: The graph cannot be cut into so many parts, the folder is not empty or cannot be
            written, the disk is full, or METIS is not installed or needs too much memory.
    """
    refuse_mistakes(store, num_parts, out, method)
    with _as_user_errors(out, _needed_bytes(store, num_parts)):
        with union_of(store, _nearest_folder(out)) as graph:
            part_of = assign(graph, num_parts, method)
        return write_parts(out, store, part_of, num_parts, method)


def refuse_mistakes(store: StoredGraph, num_parts: int, out: Path, method: Method) -> None:
    """Raise a UserError as `partition` does, as far as it is known before."""
    refuse_number(store, num_parts)
    if method == "metis":
        refuse_metis(store)
    needed = _needed_bytes(store, num_parts)
    with _as_user_errors(out, needed):
        _refuse_folder(out)
        if free_bytes(_nearest_folder(out)) < needed:
            raise _disk_full(out, needed)


def _refuse_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise _not_empty(out)


def _not_empty(out: Path) -> UserError:
    return UserError(
        f"{out} is there, and not an empty folder: nothing was written to it",
        "Give --out a folder that is not there yet, or remove it.",
    )


@contextmanager
def _as_user_errors(out: Path, needed: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _disk_full(out, needed) from error
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another process was faster
            raise _not_empty(out) from error
        raise UserError(
            f"the parts cannot be written to {out} ({error.strerror or error})",
            "Give --out a folder that you may write to.",
        ) from error


def _disk_full(out: Path, needed: int) -> UserError:
    free = free_bytes(_nearest_folder(out))
    return UserError(
        f"not enough disk space for the parts in {out}: "
        f"{needed:,} bytes are needed, {free:,} are free",
        "Free some space there, or give --out a folder on another disk.",
    )


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _needed_bytes(store: StoredGraph, num_parts: int) -> int:
    """Bytes of all parts: those of the store, the original numbers, and more headers; of types
    without features, original numbers a second time."""
    num_arrays = 5 + 3 * len(store.nodes)
    headers = num_parts * num_arrays * (HEADER_BYTES + 512)  # and their lines in the JSON
    twice = sum(len(nodes) for nodes in store.nodes.values() if nodes.num_features == 0)
    return store.num_bytes + 8 * (store.num_nodes + twice) + headers
