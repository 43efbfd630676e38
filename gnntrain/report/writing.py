"""Writes a report as HTML, CSV or PNG."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from gnntrain.atomic_io import atomic_write
from gnntrain.errors import UserError
from gnntrain.paths import is_folder
from gnntrain.report.comparison import best_of, groups_of, run_rows
from gnntrain.report.runs import Found, ReportedRun, find_runs
from gnntrain.reporting.text import format_metric, shown_metric
from gnntrain.training.records import json_safe

if TYPE_CHECKING:
    from gnntrain.report.best_model import Outcome

Format = Literal["html", "csv", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)


def write_report(
    arguments: Sequence[str | Path],
    out: Path | None = None,
    wanted: str | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write a report of runs and return where it is.

    Args:
        arguments: Run directories, names under `runs/`, `latest`, or folders of runs.
        out: The file; None: `report.<format>` in the run's or the sweep's folder, or, for several
            arguments, in the current one.
        wanted: The format; None: by the suffix of `out`, else html.
        announce: Gets a sentence before a long computation.

    Raises:
        UserError: There is no such run or format, or the file cannot be written.
    """
    chosen = _format(out, wanted)
    found = find_runs(arguments)
    path = out if out is not None else (found.home or Path()) / f"report.{chosen}"
    _refuse_unwritable(path)
    if out is None and path.is_symlink():  # a stranger may have put it there
        raise _unwritable(path, "it is a link")
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
    ending = "html" if ending == "htm" else ending
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
    if chosen == "csv":
        return _csv(run_rows(found.runs)).encode()
    if chosen == "png":
        return _png(found, announce)
    # imported where used: a CSV file needs no templates and no figures
    from gnntrain.report.pages import comparison_of, page_of
    from gnntrain.report.templating import to_html

    best = best_of(found.runs)
    outcome = _outcome(best, announce)
    if len(found.runs) == 1:
        page = page_of(best, outcome, found.notes)
    else:
        page = comparison_of(found.runs, best, outcome, found.notes)
    return to_html(page).encode()


def _outcome(run: ReportedRun, announce: Callable[[str], None]) -> Outcome:
    from gnntrain.report.best_model import outcome_of

    announce(f"computing the predictions of the best model of {run.name}")
    return outcome_of(run)


def _png(found: Found, announce: Callable[[str], None]) -> bytes:
    from gnntrain.report import figures
    from gnntrain.report.drawing import Figure, to_png
    from gnntrain.report.regression import ValueFindings

    if len(found.runs) > 1:
        groups = groups_of(found.runs)
        several: dict[str, Figure] = {
            "Training loss": partial(figures.group_losses, groups=groups),
            "Validation": partial(figures.group_metrics, groups=groups, split="val"),
            "Test": partial(figures.group_metrics, groups=groups, split="test"),
            "Test metric by setting": partial(figures.group_spread, groups=groups, split="test"),
        }
        return to_png(f"{len(found.runs)} runs", several)
    run = found.runs[0]
    metric = shown_metric(run.metric or "metric")
    chosen: dict[str, Figure] = {
        "Loss": partial(figures.loss, run=run),
        metric[:1].upper() + metric[1:]: partial(figures.metric, run=run),
        "Time of each epoch": partial(figures.time, run=run),
        "Memory": partial(figures.memory, run=run),
    }
    if run.config.get("task.type") == "node_regression":
        findings = _outcome(run, announce).findings
        if isinstance(findings, ValueFindings) and findings.targets:
            target = findings.targets[0]
            chosen[f"Predicted and true {target.name}"] = partial(
                figures.predictions, target=target
            )
            chosen[f"Errors of {target.name}"] = partial(figures.errors, target=target)
    scores = ", ".join(f"{split} {format_metric(run.score(split))}" for split in run.best)
    return to_png(f"{run.name} ({run.status}) {metric if scores else ''} {scores}".strip(), chosen)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(json_safe(row) for row in rows)
    return text.getvalue()
