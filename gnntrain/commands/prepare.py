"""Build or verify a graph store."""

from __future__ import annotations

from gnntrain.commands.base import Arguments, Command, figure, say


def _prepare(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    config = compose_config(arguments.overrides, arguments.config_dirs).config
    from gnntrain.run import prepare

    result = prepare(config)
    width = max(map(len, result))
    for key, value in result.items():
        say(f"{key:{width}}  {figure(value)}")
    return 0


COMMAND = Command(
    "[group=option] [group.key=value] ...",
    "build the data set's graph store, or verify the one that is there",
    "Training does so by itself; this does nothing else.",
    ["gnntrain prepare", "gnntrain prepare dataset.num_nodes=100000"],
    _prepare,
)
