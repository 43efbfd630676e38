"""Completion in shells: the script, and the words that a half-typed command line may go on with.

Answers at once: nothing heavy is imported. Hydra's own completion imports Hydra at each Tab.
"""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from gnntrain.commands.parsing import COMMANDS, command, option, say
from gnntrain.errors import UserError
from gnntrain.groups import config_groups

_KEYS = Path(__file__).with_name("keys.json")

# Bash takes = and : for ends of words, so the part before the last = is taken off again.
_BASH = """\
_gnntrain() {
    local IFS=$'\\n' line="${COMP_LINE:0:$COMP_POINT}" cur prefix
    cur="${line##*[[:space:]]}"
    COMPREPLY=($("${COMP_WORDS[0]}" completion bash --line "$line" 2>/dev/null))
    if [[ $cur == *=* && $COMP_WORDBREAKS == *=* ]]; then
        prefix="${cur%"${cur##*=}"}"
        COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    fi
    if [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *[=.] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -F _gnntrain gnntrain
"""

_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
autoload -Uz bashcompinit && bashcompinit
"""
_ZSH += _BASH.replace("default", "default -o nospace")
_FISH = "complete -c gnntrain -k -a '(gnntrain completion fish --line (commandline -cp))'\n"
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@command(
    "bash|zsh|fish",
    option("--line", "TEXT", "answer for this half-typed line, as the script asks"),
    least=1,
)
def completion(arguments: Namespace) -> int:
    """print the script that completes commands, keys and values in your shell

    Put the line `eval "$(gnntrain completion bash)"` into ~/.bashrc, with zsh into ~/.zshrc, or
    `gnntrain completion fish | source` into ~/.config/fish/config.fish.

    examples:
      gnntrain completion bash
      gnntrain completion zsh
    """
    shell, line = arguments.words[0], arguments.line
    if shell not in _SCRIPTS:
        hint = f"There are {', '.join(_SCRIPTS)}."
        raise UserError(f"completion for {shell!r} is not known", hint)
    for text in [_SCRIPTS[shell].rstrip()] if line is None else candidates(line):
        say(text)
    return 0


def candidates(line: str) -> list[str]:
    """What the last word of `line`, typed up to the cursor, may become; nothing where a file may
    stand."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quotation mark
        words = line.replace("'", "").replace('"', "").split()
    *before, current = [*words, ""][1:] if line[-1:].isspace() else words[1:] or [""]
    command = COMMANDS[before[0] if before and before[0] in COMMANDS else "train"]
    options = {flags[0]: settings for flags, settings in command.options}
    last = options.get(before[-1] if before else "", {})
    has_word = any("=" not in word and not word.startswith("-") for word in before[1:])
    found: Iterable[str] = ()
    if "metavar" in last:  # its value
        found = last.get("choices", ())
    elif current.startswith("-"):
        found = options
    elif command.most and "=" not in current and not has_word:
        # What may stand where the usage says `RUN` or `one|two`.
        first = command.usage.split()[0].strip("[]")
        runs = sorted(file.parent.name for file in Path("runs").glob("*/config.yaml"))
        known = {"RUN": ["latest"] * bool(runs) + runs}
        found = known.get(first, first.split("|") * ("|" in first))
    elif "group.key=value" in command.usage:
        flag = "--config-dir"
        given = " ".join(before).replace(f"{flag} ", f"{flag}=").split()
        folders = [word.partition("=")[2] for word in given if word.startswith(f"{flag}=")]
        groups = config_groups([Path(one).expanduser() for one in folders])
        # By key the values that can be listed; `python -m scripts.config_reference` writes it: the
        # schema itself takes a sixth of a second to import, too long for the Tab key.
        keys: dict[str, list[str]] = json.loads(_KEYS.read_text(encoding="utf-8"))
        key, equals, value = current.partition("=")
        if equals:  # a value, or the next one in a list or in a sweep
            typed = f"{key}={value[: max(value.rfind(','), value.rfind('[')) + 1]}"
            found = [f"{typed}{option}" for option in groups.get(key) or keys.get(key, [])]
        elif "." in current:
            found = [f"{name}=" for name in keys]
        else:
            found = [*COMMANDS] * (not before)
            found += [f"{group}=" for group, options in groups.items() if len(options) > 1]
            found += dict.fromkeys(f"{name.partition('.')[0]}." for name in keys)
    return [word for word in found if word.startswith(current)]
