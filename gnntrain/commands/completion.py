"""Completion in shells."""

from __future__ import annotations

from gnntrain.commands.base import Arguments, Command, say
from gnntrain.errors import UserError


def _completion(arguments: Arguments) -> int:
    from gnntrain.completion.scripts import INSTALL, SCRIPTS

    shell = arguments.positionals[0]
    if shell not in SCRIPTS:
        hint = f"There are {', '.join(SCRIPTS)}: {INSTALL['bash']}"
        raise UserError(f"completion for {shell!r} is not known", hint)
    line = arguments.options.get("--line")
    if line is None:
        say(SCRIPTS[shell].rstrip())
        return 0
    lines = _candidates(line, with_meaning=shell == "fish")
    if lines:
        say("\n".join(lines))
    return 0


def _candidates(line: str, *, with_meaning: bool) -> list[str]:
    from gnntrain.commands import COMMANDS
    from gnntrain.commands.ls import KINDS
    from gnntrain.completion.candidates import CommandInfo, candidates
    from gnntrain.completion.scripts import SCRIPTS

    commands = {
        name: CommandInfo(
            command.summary,
            command.positionals,
            command.changes_keys or not command.positionals,
            command.options,
            command.switches,
        )
        for name, command in COMMANDS.items()
    }
    found = candidates(line, commands, {"shell": list(SCRIPTS), "kind": list(KINDS)})
    if not with_meaning:
        return list(found)
    return [f"{word}\t{meaning}".rstrip() for word, meaning in found.items()]


COMMAND = Command(
    "bash|zsh|fish",
    "print the script that completes commands, keys and values in your shell",
    "Put the line of the example into the shell's start-up file; for fish: "
    "`gnntrain completion fish | source`.",
    ["gnntrain completion bash", "gnntrain completion zsh"],
    _completion,
    positionals=["shell"],
    options={"--line": "TEXT      answer for this half-typed command line, as the script asks"},
)
