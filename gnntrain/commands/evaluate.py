"""The metrics of a run again."""

from __future__ import annotations

from gnntrain.commands.base import Arguments, Command, say


def _evaluate(arguments: Arguments) -> int:
    from gnntrain.reporting.text import format_metric, shown_path
    from gnntrain.run import evaluate

    result = evaluate(arguments.positionals[0])
    run = shown_path(result["run"])
    say(f"{run}, best epoch {result['epoch']}, chosen by val {result['metric']}")
    if result["positive_class"] is not None:
        say(f"positive class {result['positive_class']}")
    if result["estimated"]:
        say(f"estimated: {result['estimated']}")
    for split, metrics in result["metrics"].items():
        figures = "  ".join(f"{name} {format_metric(value)}" for name, value in metrics.items())
        say(f"  {split:5}  {figures or 'no labelled node'}")
    return 0


COMMAND = Command(
    "RUN",
    "exact metrics of a run's best checkpoint, on all splits",
    "RUN is a run directory, a name under runs/, or `latest`.",
    ["gnntrain evaluate latest"],
    _evaluate,
    positionals=["run directory"],
)
