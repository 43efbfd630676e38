"""What a rank that fails leaves for its parent, before the others can fail for its sake."""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnntrain.errors import Diverged, GnntrainError, RunError, UserError

_KINDS: dict[str, type[GnntrainError]] = {kind.__name__: kind for kind in (UserError, Diverged)}
# gloo, NCCL and the store that ranks meet at each have their own class and words for it.
_TIME_OUT = re.compile(r"tim(e|ed)[ -]?out", re.IGNORECASE)


class CollectiveTimeout(RunError):
    """A rank waited for the others for too long: another one is the cause."""


@contextmanager
def reported(rank: int, report_dir: Path) -> Iterator[None]:
    """Leave an error in `report_dir`, the first one only; an interruption is none."""
    try:
        yield
    except Exception as error:
        if not _report_path(rank, report_dir).exists():
            _leave_report(rank, error, report_dir)
        raise


def forget_reports(report_dir: Path) -> None:
    """Remove those of an earlier start of the same run."""
    for report in report_dir.glob("rank_*.error.json"):
        report.unlink()


def first_report(report_dir: Path) -> GnntrainError | None:
    """The error of the rank that failed first by itself, as it told it; None if none has."""
    reports = [json.loads(path.read_text()) for path in report_dir.glob("rank_*.error.json")]
    if not reports:
        return None
    first = min(reports, key=lambda report: int(report["time"]))
    kind = CollectiveTimeout if first["timed_out"] else _KINDS.get(first["kind"], RunError)
    cause = kind(first["message"], first["hint"])
    cause.add_note(first["traceback"])
    return cause


def _leave_report(rank: int, error: Exception, report_dir: Path) -> None:
    ours = error if isinstance(error, GnntrainError) else None
    report = {
        "time": time.time_ns(),
        "kind": next((name for name, kind in _KINDS.items() if isinstance(error, kind)), ""),
        "message": ours.message if ours else _in_words(rank, error),
        "hint": ours.hint if ours else None,
        "timed_out": not ours and _TIME_OUT.search(str(error)) is not None,
        "traceback": traceback.format_exc(),
    }
    path = _report_path(rank, report_dir)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(report))
    draft.replace(path)  # another rank may be looking


def _in_words(rank: int, error: Exception) -> str:
    return f"Rank {rank} failed: {type(error).__name__}: {error}"


def _report_path(rank: int, report_dir: Path) -> Path:
    return report_dir / f"rank_{rank}.error.json"
