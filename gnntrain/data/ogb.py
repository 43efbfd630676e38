"""Access to the Open Graph Benchmark's package: its evaluators, and its table of data sets."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def ogb_evaluator(name: str) -> Any:
    """OGB's evaluator of a node data set, such as "ogbn-arxiv"."""
    return ogb_nodeproppred().Evaluator(name)


def ogb_nodeproppred() -> Any:
    """The module `ogb.nodeproppred`: data sets and evaluators."""
    import_without_version_check()
    return importlib.import_module("ogb.nodeproppred")


def import_without_version_check() -> None:
    """Import `ogb`, but not with the thread that asks PyPI for a newer version.

    That thread would keep a process without network from ending.
    """
    if "ogb" in sys.modules:
        return
    absent = object()
    before: Any = sys.modules.get("outdated", absent)
    refused: Any = None  # Python's way to make an import fail
    sys.modules["outdated"] = refused
    try:
        importlib.import_module("ogb")
    finally:
        del sys.modules["outdated"]
        if before is not absent:
            sys.modules["outdated"] = before
