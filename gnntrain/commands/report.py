"""A page about runs."""

from __future__ import annotations

from gnntrain.commands.base import Arguments, Command, say
from gnntrain.paths import expanded


def _report(arguments: Arguments) -> int:
    from gnntrain.report.writing import write_report
    from gnntrain.reporting.text import shown_path

    out = arguments.options.get("--out")
    path = write_report(
        arguments.words,
        expanded(out) if out is not None else None,
        arguments.options.get("--format"),
        say,
    )
    say(shown_path(path))
    return 0


COMMAND = Command(
    "RUN [RUN ...]",
    "one page about a run, or about several and what they differ in",
    "RUN is a run directory, a name under runs/, `latest`, or the folder of a sweep. The page is "
    "one HTML file that needs no network: curves, where the time went, scores by class, the "
    "embeddings, the configuration; of several runs their differences, and means over seeds. It "
    "goes to RUN/report.html; of several words to report.html here.",
    [
        "gnntrain report latest",
        "gnntrain report runs/a runs/b --out comparison.html",
        "gnntrain report latest --format md",
    ],
    _report,
    words=["run directory"],
    repeats=True,
    options={
        "--out": "FILE       where to; its ending says the format",
        "--format": "FORMAT  html (default), md, csv (a row a run) or png (the curves)",
    },
)
