"""A run's best model for use without gnntrain."""

from __future__ import annotations

from gnntrain.commands.base import Arguments, Command, option, say


def _export(arguments: Arguments) -> int:
    from gnntrain.reporting.text import shown_path
    from gnntrain.results.export import export

    done = export(arguments.positionals[0], arguments.out)
    say(f"{shown_path(done.path)}: the best model of {done.run} as {done.made_with}")
    say("README.md there says how to use it without gnntrain")
    return 0


COMMAND = Command(
    "RUN [--out DIR]",
    "a run's best model as a plain PyG model, with a model card",
    "RUN is a run directory, a name under runs/, or `latest`. The folder (RUN/export unless --out "
    "says otherwise) holds the weights by PyG's names, a Python file that loads them with torch "
    "and PyG alone, and a card: what the model takes and gives, its metrics, its configuration.",
    ["gnntrain export latest"],
    _export,
    positionals=["run directory"],
    options=[option("--out", "DIR", "where to; must not be there yet, or empty")],
)
