"""Runs in, a file out: a page, a text, a table or a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from gnntrain.atomic_io import atomic_write
from gnntrain.errors import UserError
from gnntrain.paths import is_folder
from gnntrain.report.comparison import best_of
from gnntrain.report.content import Report
from gnntrain.report.outcome import outcome_of
from gnntrain.report.runs import Found, find_runs
from gnntrain.report.several import comparison_of, run_rows
from gnntrain.report.single import report_of
from gnntrain.report.values import TargetFindings, ValueFindings
from gnntrain.training.records import json_safe

Format = Literal["html", "md", "csv", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)


def write_report(
    words: Sequence[str | Path],
    out: Path | None = None,
    wanted: str | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write a report of runs and return where it is.

    Args:
        words: Run directories, names under `runs/`, `latest`, or folders of sweeps.
        out: The file; None: `report.<format>` in the run's or the sweep's folder, or, for several
            words, in the current one.
        wanted: The format; None: as `out` ends, else html.
        announce: Is told what takes a while.

    Raises:
        UserError: There is no such run or format, or the file cannot be written.
    """
    chosen = _format(out, wanted)
    found = find_runs(words)
    path = out if out is not None else (found.home or Path()) / f"report.{chosen}"
    _refuse_unwritable(path)
    content = _content(found, chosen, announce)
    try:
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error
    except ValueError as error:  # a null byte
        raise _unwritable(path, str(error)) from error
    return path


def _format(out: Path | None, wanted: str | None) -> Format:
    ending = wanted or (out.suffix.removeprefix(".").lower() if out is not None else "") or "html"
    ending = {"htm": "html", "markdown": "md"}.get(ending, ending)
    if ending not in FORMATS:
        raise UserError(
            f"a report cannot be written as {ending!r}",
            f"Give --format one of {', '.join(FORMATS)}, or --out a name that ends so.",
        )
    return ending


def _refuse_unwritable(path: Path) -> None:
    """Before anything is computed."""
    if is_folder(path):
        raise _unwritable(path, "it is a directory")
    if not is_folder(path.absolute().parent):
        raise _unwritable(path, "its directory does not exist")


def _unwritable(path: Path, reason: str) -> UserError:
    return UserError(f"the report {path} cannot be written: {reason}", "Choose another with --out.")


def _content(found: Found, chosen: Format, announce: Callable[[str], None]) -> bytes:
    # each library is imported only where its format is asked for
    if chosen == "csv":
        return _csv(run_rows(found.runs)).encode()
    if chosen == "png":
        from gnntrain.report.picture import to_png

        return to_png(found.runs, _first_target(found, announce))
    report = _report(found, announce)
    if chosen == "md":
        from gnntrain.report.markdown import to_markdown

        return to_markdown(report).encode()
    from gnntrain.report.page import to_html

    return to_html(report).encode()


def _first_target(found: Found, announce: Callable[[str], None]) -> TargetFindings | None:
    """What a regression's best model says of its first target; None of several runs."""
    run = found.runs[0]
    if len(found.runs) > 1 or run.config.get("task.type") != "node_regression":
        return None
    announce(f"computing what the best model of {run.name} says of every node")
    findings = outcome_of(run).findings
    return findings.targets[0] if isinstance(findings, ValueFindings) and findings.targets else None


def _report(found: Found, announce: Callable[[str], None]) -> Report:
    best = best_of(found.runs)
    announce(f"computing what the best model of {best.name} says of every node")
    outcome = outcome_of(best)
    if len(found.runs) == 1:
        return report_of(best, outcome, found.notes)
    return comparison_of(found.runs, best, outcome, found.notes)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(json_safe(row) for row in rows)
    return text.getvalue()
