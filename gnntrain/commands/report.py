"""`gnntrain report`: a page about runs."""

from __future__ import annotations

from gnntrain.commands.base import Arguments, Command, option, say
from gnntrain.errors import UserError
from gnntrain.paths import expanded


def _report(arguments: Arguments) -> int:
    from gnntrain.report.writing import write_report
    from gnntrain.reporting.text import shown_path

    out = arguments.out
    if out == "-":
        raise UserError("a report is a file, and --out=- names none", "As in `--out report.csv`.")
    path = write_report(
        arguments.positionals,
        expanded(out) if out is not None else None,
        arguments.format,
        say,
        expanded(arguments.figures) if arguments.figures is not None else None,
    )
    say(shown_path(path))
    return 0


COMMAND = Command(
    "RUN [RUN ...]",
    "one page about a run, or a comparison of several",
    "RUN is a run directory, a name under runs/, `latest`, or a folder of runs, such as a sweep's. "
    "The page is one HTML file that needs no network: metrics by epoch, time by phase, scores by "
    "class, embeddings, the configuration; of several runs their differences, and means over "
    "seeds. It goes to RUN/report.html; of several arguments to report.html here.",
    [
        "gnntrain report latest",
        "gnntrain report runs/a runs/b --out comparison.html",
        "gnntrain report latest --format csv",
    ],
    _report,
    positionals=["run directory"],
    repeats=True,
    options=[
        option("--out", "FILE", "the report; its suffix is the format"),
        option("--format", "FORMAT", "html (default) or csv (a row a run)"),
        option("--figures", "DIR", "a folder for the page's figures, a PNG file each"),
    ],
)
