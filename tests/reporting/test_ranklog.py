from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnntrain.errors import RunError
from gnntrain.reporting.ranklog import forwarded_warnings, rank_log
from tests.disks import full_disk

LOG = logging.getLogger("gnntrain")


@pytest.fixture(autouse=True)
def _every_warning() -> Iterator[None]:
    """Python shows a warning once a place; a test wants it each time, and none as an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


def test_a_rank_has_a_file_with_time_level_and_rank(tmp_path: Path) -> None:
    with rank_log(tmp_path, 3):
        LOG.info("epoch %d", 1)
        logging.getLogger("gnntrain.loading").warning("slow")
    lines = (tmp_path / "logs" / "rank_3.log").read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO    rank 3: epoch 1", lines[0])
    assert lines[1].endswith("WARNING rank 3: slow")


def test_a_python_warning_goes_to_the_file_until_it_is_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = warnings.showwarning
    with rank_log(tmp_path, 0):
        warnings.warn("mind the gap", stacklevel=1)
    LOG.error("late")
    text = (tmp_path / "logs" / "rank_0.log").read_text()
    assert "UserWarning: mind the gap" in text
    assert "late" not in text
    assert "mind the gap" not in capsys.readouterr().err
    assert warnings.showwarning is before


def test_warnings_reach_the_watcher_as_one_line_each() -> None:
    messages: list[str] = []
    with forwarded_warnings(messages.append):
        LOG.info("not for the console")
        LOG.warning("a logger failed:\n no space")
        warnings.warn("deprecated\nthing", FutureWarning, stacklevel=1)
    assert messages[0] == "a logger failed: no space"
    assert messages[1].startswith("FutureWarning: deprecated thing")
    LOG.warning("after the end")
    assert len(messages) == 2


def test_the_file_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    messages: list[str] = []
    with forwarded_warnings(messages.append), rank_log(tmp_path, 0):
        LOG.info("before")
        with full_disk(100):
            for number in range(500):
                LOG.info("meanwhile %d", number)
        LOG.info("after")
    assert len(messages) == 1
    lines = (tmp_path / "logs" / "rank_0.log").read_text().splitlines()
    assert lines[0].endswith("before")
    assert lines[-1].endswith("after")
    assert all(line.startswith("20") for line in lines[:3])


def test_a_log_that_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(RunError, match=r"rank_0\.log cannot be written"), rank_log(tmp_path, 0):
        pass


def test_any_text_can_be_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What pytest captures of it could not be sent from one of its workers to another process.
    monkeypatch.setattr(logging.getLogger("gnntrain"), "propagate", False)
    with rank_log(tmp_path, 0):
        LOG.info("a file named %s", os.fsdecode(b"\xff.csv"))
    assert "named \\udcff.csv" in (tmp_path / "logs" / "rank_0.log").read_text()
