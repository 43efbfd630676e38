"""Build or verify a graph store."""

from __future__ import annotations

from gnntrain.commands.base import Arguments, Command, figure, say


def _prepare(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    config = compose_config(arguments.overrides, arguments.config_dirs).config
    from gnntrain.data.summary import from_plain
    from gnntrain.run import prepare

    result = prepare(config)
    read = from_plain(result.pop("data"))
    lines = [(key, figure(value)) for key, value in result.items()]
    width = max(map(len, result))
    for key, text in [*lines, *(read.lines() if read is not None else [])]:
        say(f"{key:{width}}  {text}")
    return 0


COMMAND = Command(
    "[group=option] [group.key=value] ...",
    "build the data set's graph store, or verify the one that is there",
    "Training does so by itself; this does nothing else.",
    ["gnntrain prepare", "gnntrain prepare dataset.num_nodes=100000"],
    _prepare,
)
