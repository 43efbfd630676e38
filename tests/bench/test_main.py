"""The benchmark from its command line to its figures, on a small graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench.__main__ import main
from scripts.bench.sitting import Absent, Contestant
from tests.bench.test_turns import spec


@pytest.mark.slow
def test_ours_is_measured_and_whoever_is_absent_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    no_python = tmp_path / "python"  # a Python in which nothing can be imported
    no_python.write_text("#!/bin/sh\necho 'No module named dgl' >&2\nexit 1\n")
    no_python.chmod(0o755)
    size = ["--rounds", "2", "--batches", "2", "--seconds", "0.1", "--threads", "1"]
    peer = ["--peers", "graphbolt", "--peer-python", f"graphbolt={no_python}"]
    older = ["--before", str(Path(__file__).parents[2])]
    output = ["--json", str(tmp_path / "bench.json")]
    main(["--graphs", "small", "--stages", "step", *size, *peer, *older, *output])

    report = json.loads((tmp_path / "bench.json").read_text())
    (sitting,) = report["sittings"]
    ours, before, absent = sitting["contestants"]
    assert (ours["name"], before["name"]) == ("gnntrain", "before")
    # Each is timed for as many batches as fit into the seconds.
    assert before["edges_per_batch"] == pytest.approx(ours["edges_per_batch"], rel=0.01)
    assert ours["faster_than"][0]["name"] == "before"
    assert len(ours["rates"]) == 2
    assert min(ours["rates"]) > 0
    # 1,024 seeds draw 10 each, and with what they find 5 each.
    assert 10_000 < ours["edges_per_batch"] < 1024 * (10 + 5 * 11)
    assert ours["peak_rss_bytes"] > 2**26
    assert absent["name"] == "graphbolt"
    assert "No module named dgl" in absent["absent"]
    (floor,) = sitting["floors"].values()
    assert min(floor["flops"], floor["bytes"], floor["floor_s"]) > 0
    assert report["machine"]["cores"] >= 1
    shown = capsys.readouterr().out
    assert "No module named dgl" in shown


def test_a_python_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--peer-python", "graphbolt=/nowhere/python"])
    assert error.value.code == 2
    assert "--peer-python graphbolt=/nowhere/python" in capsys.readouterr().err


def test_a_contestant_that_dies_is_absent_with_its_last_words() -> None:
    with pytest.raises(Absent, match=r"exit code 1: .*nobody"):
        Contestant("nobody", spec(), quiet=True)
