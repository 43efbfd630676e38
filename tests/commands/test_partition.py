"""`gnntrain partition`: exit codes, what it prints, and what is left behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from gnntrain.cli import main
from gnntrain.data.partitioned_graph import PartitionedGraph
from tests.processes import started, wait_until

SMALL = ["dataset.num_nodes=400", "dataset.avg_degree=6", "dataset.num_features=8"]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [*SMALL, f"dataset.store_dir={tmp_path}/stores"]


@pytest.mark.parametrize("method", ["", "metis", "random"])
def test_parts_are_written_and_described(
    small: list[str], capsys: pytest.CaptureFixture[str], method: str
) -> None:
    chosen = ["--method", method] if method else []
    assert main(["partition", *small, "--parts=3", "--out", "parts", *chosen]) == 0
    shutil.rmtree("stores")  # the parts are all that is needed
    graph = PartitionedGraph.open(Path("parts"))
    meta = graph.meta
    out = capsys.readouterr().out
    assert meta.method == (method or "streaming")
    for number in (graph.num_nodes, graph.num_edges, meta.cut_edges):
        assert f"{number:,}" in out
    for part in meta.parts:
        assert f"{part.num_edges:,}" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--out", "parts"],
        ["--parts", "2"],
        ["--parts", "0", "--out", "parts"],
        ["--parts", "257", "--out", "parts"],
        ["--parts", "two", "--out", "parts"],
        ["--parts", "2", "--out", "stores"],
        ["--parts", "2", "--out", "parts", "--method", "magic"],
        ["--parts", "2", "--out", "parts", "modle=sage"],
        ["--parts", "2", "--out", "parts", "parts3"],
    ],
)
def test_mistakes(
    small: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    Path("stores").mkdir()
    Path("stores/mine.txt").touch()
    assert main(["partition", *small, *arguments]) == 2
    out, err = capsys.readouterr()
    assert err
    assert not out
    assert not Path("parts").exists()


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    options = ["--parts", "2", "--out", "out/parts"]
    return started("-m", "gnntrain", "partition", *arguments, *options)


def test_a_signal_leaves_nothing_behind(small: list[str]) -> None:
    """The process is stopped while it writes, and told to end then."""
    large = ["dataset.num_nodes=50000", "dataset.num_features=300"]
    process = start([*small, *large])
    wait_until(lambda: any(Path("out").glob(".parts.*/part1/*.npy")))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert not any(Path("out").iterdir())


_ENDLESS = """
import signal, time
from pathlib import Path

class CSRAdjacency:
    def __init__(self, *_): pass

class Options:
    def __init__(self, **_): pass

def part_graph(*_, **__):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    Path("began").touch()
    time.sleep(600)
"""


@pytest.mark.slow
def test_ctrl_c_is_heard_while_metis_computes(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """METIS is replaced by a program that does not end, and hears no signal as METIS hears none."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "pymetis.py").write_text(_ENDLESS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    process = start([*small, "--method", "metis"])
    wait_until(Path("began").exists)
    children = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert not Path("out").exists()
    assert psutil.wait_procs(children, timeout=60)[1] == []
