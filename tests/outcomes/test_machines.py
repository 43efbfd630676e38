"""Runs over several machines, which are network namespaces: torchrun starts a rank on each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.cluster.machines import Machines, Unavailable
from scripts.cluster.pages import block, commands
from tests.processes import ROOT
from tests.summaries import summary_of

_OPTIONS = [
    "trainer.gpus=0",
    "dataset.num_nodes=600",
    "model.dropout=0",
    "trainer.batch_size=32",
    "trainer.epochs=2",
]
_SECONDS = 120.0


def two_machines() -> Machines:
    try:
        return Machines(2)
    except Unavailable as reason:
        pytest.skip(f"network namespaces are not allowed here: {reason}")


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with two_machines() as made:
        yield made


def typed(machines: Machines, folder: Path, *words: str, on: range = range(2)) -> dict[int, str]:
    """What the command prints on each machine, whose caches are its own."""
    env = {m: {"XDG_CACHE_HOME": str(folder / f"disk{m}"), "PYTHONPATH": str(ROOT)} for m in on}
    command = [sys.executable, "-m", *words]
    return machines.run(dict.fromkeys(on, command), folder=folder, env=env, seconds=_SECONDS)


def trained(
    machines: Machines, folder: Path, *more: str, options: Sequence[str] = _OPTIONS
) -> dict[str, Any]:
    """The summary of a run with a rank on each machine."""
    torchrun = ["torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=machine0:29500"]
    words = ["-m", "gnntrain", *options, f"run.dir={folder}/run", *more]
    typed(machines, folder, *torchrun, *rendezvous, *words)
    return summary_of(folder / "run")


@pytest.fixture(scope="module")
def alone(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of two ranks on one machine."""
    folder = tmp_path_factory.mktemp("alone")
    ranks = "distributed.num_processes=2"
    typed(machines, folder, "gnntrain", *_OPTIONS, ranks, f"run.dir={folder}/run", on=range(1))
    return summary_of(folder / "run")


def test_machines_have_names_and_nothing_of_them_is_left(tmp_path: Path) -> None:
    with two_machines() as machines:
        asked = "import socket; print(socket.gethostname(), socket.gethostbyname('machine0'))"
        command = [sys.executable, "-c", asked]
        printed = machines.run({0: command, 1: command}, folder=tmp_path, env={}, seconds=20)
        assert printed == {0: "machine0 10.0.0.1\n", 1: "machine1 10.0.0.1\n"}
        sleeper = machines.start(1, ["sleep", "1000"])
    assert sleeper.wait(10) != 0


@pytest.mark.slow
def test_a_copy_on_each_machine_trains_as_two_ranks_on_one(
    machines: Machines, alone: dict[str, Any], tmp_path: Path
) -> None:
    summary = trained(machines, tmp_path)
    assert (summary["status"], summary["world_size"]) == ("completed", 2)
    for key in ("train_loss", "train", "val", "test"):
        assert summary[key] == alone[key]
    # Each machine has built its own store.
    assert all(any((tmp_path / f"disk{m}").rglob("meta.json")) for m in range(2))


@pytest.mark.slow
def test_a_part_on_each_machine_trains_as_two_ranks_on_one(
    machines: Machines, alone: dict[str, Any], tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    dataset = next(option for option in _OPTIONS if option.startswith("dataset."))
    options = ["--parts", "2", "--out", str(parts), "--method", "random"]
    typed(machines, tmp_path, "gnntrain", "partition", dataset, *options, on=range(1))
    found = trained(
        machines, tmp_path, "distributed.graph=partitioned", f"distributed.parts={parts}"
    )
    assert found["train_loss"] == pytest.approx(alone["train_loss"], abs=1e-4)
    for split in ("train", "val", "test"):
        assert found[split] == pytest.approx(alone[split], abs=1e-5)


def test_a_block_of_the_page_is_typed_on_the_machines_that_it_names() -> None:
    by_machine = commands("torchrun", 2)
    assert [by_machine[m].count(f"--node-rank {m} ") for m in range(2)] == [1, 1]
    assert commands("rendezvous", 3)[2] in block("rendezvous")
