"""WholeGraph in the GPU benchmark; without it, a stand-in of the same names and parameters."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from inspect import getmembers, isclass, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from scripts.bench import gpu, wholegraph
from scripts.bench.gpu_figures import GATHERING, WHOLEGRAPH, Figure, Ratio, ratios
from tests.bench import stand_in_wholegraph as stand_in
from tests.bench.test_gpu import TINY
from tests.compute.devices import INTERPRETS

CASES = {case.name: case for case in gpu.CASES}
SPEED_UP = "speed-up over WholeGraph, sampling and gathering"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    modules = stand_in.modules()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(wholegraph, "tried", lambda _: None)
    return modules["pylibwholegraph.torch"]


def run(tmp_path: Path, *names: str) -> dict[str, Any]:
    """What is written of these cases."""
    file = tmp_path / "gpu.json"
    cases = [CASES[name] for name in names]
    gpu.run(cases, 2, Console(quiet=True), file, [], device=torch.device("cpu"), smaller=TINY)
    written: dict[str, Any] = json.loads(file.read_text())
    return written


@pytest.mark.skipif(not INTERPRETS, reason="kernels are compiled: the interpreter is not used")
@pytest.mark.usefixtures("library")
def test_both_do_the_same_work_and_their_ratio_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before, threads = dict(os.environ), torch.get_num_threads()
    written = run(tmp_path, GATHERING, WHOLEGRAPH)
    assert (written["failures"], written["left_out"]) == ({}, {})
    ours, theirs = written["figures"]
    assert theirs["notes"]["edges_per_batch"] == pytest.approx(
        ours["notes"]["edges_per_batch"], rel=0.02
    )
    assert theirs["notes"]["version"] == "26.10.00"
    assert "continuous memory" in theirs["notes"]["placement"][0]
    told = written["ratios"][SPEED_UP]
    assert told["value"] == pytest.approx(ours["median"] / theirs["median"])
    assert (told["must"], told["reached"]) == (1.5, told["value"] >= 1.5)
    # What its start changed is as it was, and its memory was given back.
    assert dict(os.environ) == before
    assert torch.get_num_threads() == threads
    assert not stand_in.ALIVE
    assert not stand_in.Communicator.is_running


@pytest.mark.usefixtures("library")
def test_rows_of_other_nodes_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gather = stand_in.WholeMemoryTensor.gather

    def wrong(tensor: stand_in.WholeMemoryTensor, indice: Tensor) -> Tensor:
        return gather(tensor, indice.flip(0))

    monkeypatch.setattr(stand_in.WholeMemoryTensor, "gather", wrong)
    written = run(tmp_path, WHOLEGRAPH)
    assert "are not those of the nodes" in written["failures"][WHOLEGRAPH]
    assert not stand_in.ALIVE
    with pytest.raises(RuntimeError, match="drawn"):
        wholegraph.trial("continuous", "cpu")


def test_without_it_the_case_is_left_out_and_nothing_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pylibwholegraph", None)
    written = run(tmp_path, WHOLEGRAPH)
    assert "not installed" in written["left_out"][WHOLEGRAPH]
    assert (written["figures"], written["ratios"], written["failures"]) == ([], {}, {})


def test_a_process_that_is_ended_leaves_word_of_the_case(
    library: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def ended(*_: object, **__: object) -> None:
        raise SystemExit(134)

    monkeypatch.setattr(library, "init_torch_env_and_create_wm_comm", ended)
    with pytest.raises(SystemExit):
        run(tmp_path, WHOLEGRAPH)
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert "process ended" in written["failures"][WHOLEGRAPH]


@pytest.mark.usefixtures("library")
def test_a_kind_of_memory_is_tried_on_a_ring() -> None:
    wholegraph.trial("continuous", "cpu")


@pytest.mark.usefixtures("library")
def test_the_first_kind_of_memory_that_works_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"continuous": "exit status 134", "chunked": None, "distributed": None}
    monkeypatch.setattr(wholegraph, "tried", said.get)
    assert wholegraph.usable_memory() == ("chunked", {"continuous": "exit status 134"})
    monkeypatch.setattr(wholegraph, "tried", lambda _: "no")
    with pytest.raises(RuntimeError, match="no memory on this GPU"):
        wholegraph.usable_memory()


def test_what_a_trial_said_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$3" = chunked ] && exit\necho "cuMemCreate: $*"; kill -6 $$\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    said = "exit status -6; cuMemCreate: -m scripts.bench.wholegraph continuous"
    assert wholegraph.tried("continuous") == said
    assert wholegraph.tried("chunked") is None


def test_other_work_is_told_as_unfair() -> None:
    notes = {"edges_per_batch": 1000.0, "rows_per_batch": 500.0}
    ours = Figure(GATHERING, "edges/s", [3.0], 3.0, 3.0, 3.0, None, None, notes)
    theirs = replace(ours, name=WHOLEGRAPH, median=2.0)
    assert ratios([ours, theirs]) == {SPEED_UP: Ratio(1.5, 1.5, True)}
    slower = replace(theirs, median=2.1)
    assert ratios([ours, slower])[SPEED_UP].reached is False
    other = replace(theirs, notes=notes | {"edges_per_batch": 1030.0})
    told = "edges_per_batch: 1000 and 1030"
    assert ratios([ours, other]) == {SPEED_UP: Ratio(None, 1.5, None, told)}


def parameters(module: Any) -> set[tuple[str, ...]]:
    """The public functions and methods that the stand-in has, each with its parameters."""
    found = set()
    for name in stand_in.PUBLIC:
        one = getattr(module, name)
        methods = getmembers(one, isfunction) if isclass(one) else [("", one)]
        found |= {(name, method, *signature(call).parameters) for method, call in methods}
    return {one for one in found if not one[1].startswith("_")}


@pytest.mark.gpu
def test_the_stand_in_has_the_parameters_of_what_it_stands_for() -> None:
    real = pytest.importorskip("pylibwholegraph.torch", exc_type=ImportError)
    assert parameters(stand_in) <= parameters(real)
