"""A process that takes its time to build a store, for tests that run two or kill one."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from gnntrain.data.build import open_or_build
from gnntrain.data.graph import JSON, GraphData, PrepareOptions
from tests.data.oracles import Rows, small_graph

IDENTITY: dict[str, JSON] = {"dataset": "sm/all", "seed": 1}


def start_building(cache: Path, log: Path, seconds: float) -> BaseProcess:
    """Start a process that opens or builds the store; it notes in `log` that it builds."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_open_or_build, args=(cache, log, seconds))
    process.start()
    return process


def _open_or_build(cache: Path, log: Path, seconds: float) -> None:
    def builder() -> GraphData:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return small_graph(
            features=Rows(small_graph().target_nodes.features, lambda _: time.sleep(seconds))
        )

    open_or_build(cache, lambda: IDENTITY, PrepareOptions(), builder)
