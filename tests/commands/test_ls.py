"""`gnntrain ls`: kinds, folders and the screen of runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnntrain.cli import main
from tests.report.samples import write_run


def test_the_screen_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "first", (), {})
    write_run(tmp_path / "sweep" / "0", (), {"status": "failed"})
    os.utime(tmp_path / "first" / "config.yaml", (0, 0))
    assert main(["ls", "runs", str(tmp_path)]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == f"runs in {tmp_path}"
    assert lines == GOLDEN.splitlines()


GOLDEN = """\
  run      status     metric       val    test  best    time
  sweep/0  failed     accuracy  0.7000  0.6900   2/3  3.21 s
  first    completed  accuracy  0.7000  0.6900   2/3  3.21 s
  `gnntrain resume RUN` goes on with a run that did not complete.
"""


def test_without_a_word_all_kinds_are_listed_briefly(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(7):
        write_run(here / "runs" / f"run{number}", (), {})
    assert main(["ls"]) == 0
    out = capsys.readouterr().out
    for part in ("ogbn-papers100M", "GraphSAGE", "2 more: `gnntrain ls runs`"):
        assert part in out
    assert out.count("completed") == 5
    assert main(["ls", "runs"]) == 0
    assert capsys.readouterr().out.count("completed") == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dataset"], "Did you mean datasets?"),
        (["runs", "/nowhere"], "there is no folder"),
        (["models", "/tmp"], "lie in no folder"),
        (["runs", "a", "b"], "[FOLDER], not runs a b"),
    ],
)
def test_what_cannot_be_listed_is_the_users_mistake(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", *arguments]) == 2
    assert words in capsys.readouterr().err
