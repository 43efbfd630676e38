"""Writes a report as HTML or CSV."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

from gnntrain.atomic_io import atomic_write
from gnntrain.errors import RunError, UserError
from gnntrain.report.runs import best_of, find_runs, run_rows
from gnntrain.training.records import json_safe


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
        RunError: The disk is full.
    """
    ending = wanted or (out.suffix.removeprefix(".").lower() if out is not None else "") or "html"
    if ending not in ("html", "csv"):
        raise UserError(
            f"a report cannot be written as {ending!r}",
            "Give --format html or csv, or --out a name that ends so.",
        )
    runs, home = find_runs(arguments)
    path = out if out is not None else (home or Path()) / f"report.{ending}"
    try:
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise OSError("it is a directory, or its directory does not exist")
        if out is None and path.is_symlink():  # a stranger may have put it there
            raise OSError("it is a link")
        if ending == "csv":
            import pandas as pd

            content = pd.DataFrame(json_safe(run_rows(runs)), dtype=object).to_csv(index=False)
        else:
            from gnntrain.report.findings import findings_of
            from gnntrain.report.page import page_of, to_html

            if figures is not None:
                figures.mkdir(parents=True, exist_ok=True)
            best = best_of(runs)
            announce(f"computing the predictions of the best model of {best.name}")
            content = to_html(page_of(runs, best, findings_of(best)), figures)
        with atomic_write(path) as file:
            file.write(content.encode())
    except (OSError, ValueError) as error:  # ValueError: a null byte
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        words = f"the report {path} cannot be written: {error}"
        raise (RunError if is_full else UserError)(words, "Choose another with --out.") from error
    return path
