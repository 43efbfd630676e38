"""Writes a report as HTML or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from gnntrain.atomic_io import atomic_write
from gnntrain.errors import UserError
from gnntrain.paths import is_folder
from gnntrain.report.comparison import best_of, run_rows
from gnntrain.report.runs import ReportedRun, find_runs
from gnntrain.training.records import json_safe

FORMATS = ("html", "csv")


def write_report(
    arguments: Sequence[str | Path],
    out: Path | None = None,
    wanted: str | None = None,
    announce: Callable[[str], None] = lambda _: None,
    figures: Path | None = None,
) -> Path:
    """Write a report of runs and return where it is.

    Args:
        arguments: Run directories, names under `runs/`, `latest`, or folders of runs.
        out: The file; None: `report.<format>` in the run's or the sweep's folder, or, for several
            arguments, in the current one.
        wanted: The format, `html` or `csv`; None: by the suffix of `out`, else html.
        announce: Gets a sentence before a long computation.
        figures: A folder for the page's figures as PNG files; made where it is not there.

    Raises:
        UserError: There is no such run or format, or a file cannot be written.
    """
    ending = wanted or (out.suffix.removeprefix(".").lower() if out is not None else "") or "html"
    ending = "html" if ending == "htm" else ending
    if ending not in FORMATS:
        raise UserError(
            f"a report cannot be written as {ending!r}",
            f"Give --format one of {', '.join(FORMATS)}, or --out a name that ends so; --figures "
            "DIR writes the figures as files.",
        )
    runs, home, notes = find_runs(arguments)
    path = out if out is not None else (home or Path()) / f"report.{ending}"
    if is_folder(path):
        raise _unwritable(path, "it is a directory")
    if not is_folder(path.absolute().parent):
        raise _unwritable(path, "its directory does not exist")
    if out is None and path.is_symlink():  # a stranger may have put it there
        raise _unwritable(path, "it is a link")
    try:
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
        content = _csv(runs) if ending == "csv" else _html(runs, notes, announce, figures)
        with atomic_write(path) as file:
            file.write(content.encode())
    except OSError as error:
        raise _unwritable(path, f"{error.filename or path}: {error.strerror or error}") from error
    except ValueError as error:  # a null byte
        raise _unwritable(path, str(error)) from error
    return path


def _unwritable(path: Path, reason: str) -> UserError:
    return UserError(f"the report {path} cannot be written: {reason}", "Choose another with --out.")


def _html(
    runs: Sequence[ReportedRun],
    notes: Sequence[str],
    announce: Callable[[str], None],
    figures: Path | None,
) -> str:
    # imported where used: a CSV file needs no templates and no figures
    from gnntrain.report.findings import findings_of
    from gnntrain.report.page import comparison_of, page_of, to_html

    best = best_of(runs)
    announce(f"computing the predictions of the best model of {best.name}")
    findings = findings_of(best)
    if len(runs) == 1:
        return to_html(page_of(best, findings, notes), figures)
    return to_html(comparison_of(runs, best, findings, notes), figures)


def _csv(runs: Sequence[ReportedRun]) -> str:
    rows = run_rows(runs)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(json_safe(row) for row in rows)
    return text.getvalue()
