"""Completion in shells: the script, and the words that a half-typed command line may go on with.

Answers at once: nothing heavy is imported. Hydra's own completion knows neither commands nor runs,
and imports Hydra at each Tab; click's and shtab's know options, not keys and their values.
"""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from gnntrain.commands.parsing import COMMANDS, command, option, say
from gnntrain.errors import UserError
from gnntrain.groups import config_groups

# Bash takes = and : for ends of words, so the part before the last = is taken off again.
_BASH = """\
_gnntrain() {
    local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}" cur prefix
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
#compdef gnntrain
_gnntrain() {
    local -a open done
    local one
    for one in "${(@f)$(${words[1]} completion zsh --line "$BUFFER[1,CURSOR]" 2>/dev/null)}"; do
        case $one in
            '') ;;
            *[=.]) open+=("$one") ;;
            *) done+=("$one") ;;
        esac
    done
    if (( ${#open} + ${#done} == 0 )); then
        compset -P '*='
        _files
        return
    fi
    compadd -Q -S '' -a open
    compadd -Q -a done
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _gnntrain gnntrain
"""

_FISH = """\
function __gnntrain
    set -l words (commandline -opc)
    set -l found ($words[1] completion fish --line (commandline -cp) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c gnntrain -k -f -a '(__gnntrain)'
"""

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
    if line is None:
        say(_SCRIPTS[shell].rstrip())
        return 0
    for word, meaning in candidates(line).items():
        say(f"{word}\t{meaning}".rstrip() if shell == "fish" else word)
    return 0


def candidates(line: str) -> dict[str, str]:
    """The words that the last word of `line`, typed up to the cursor, may become, and what they
    mean; none where a file may stand."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quotation mark
        words = line.replace("'", "").replace('"', "").split()
    *before, current = [*words, ""][1:] if line[-1:].isspace() else words[1:] or [""]
    command = COMMANDS[before[0] if before and before[0] in COMMANDS else "train"]
    options = {flags[0]: settings for flags, settings in command.options}
    groups, found = config_groups(), dict[str, str]()
    last = options.get(before[-1] if before else "", {})
    has_word = any("=" not in word and not word.startswith("-") for word in before[1:])
    if "metavar" in last:  # its value
        found = dict.fromkeys(last.get("choices", ()), "")
    elif current.startswith("-"):
        found = {flag: str(settings["help"]) for flag, settings in options.items()}
    elif command.most and "=" not in current and not has_word:
        # What may stand where the usage says `RUN`, `EXPERIMENT` or `one|two`.
        first = command.usage.split()[0].strip("[]")
        runs = sorted(file.parent.name for file in Path("runs").glob("*/config.yaml"))
        recipes = [one for one in groups["experiment"] if one != "none"]
        known = {"RUN": ["latest"] * bool(runs) + runs, "EXPERIMENT": recipes}
        found = dict.fromkeys(known.get(first, first.split("|") * ("|" in first)), "")
    elif "group.key=value" in command.usage:
        flag = "--config-dir"
        given = " ".join(before).replace(f"{flag} ", f"{flag}=").split()
        folders = [word.partition("=")[2] for word in given if word.startswith(f"{flag}=")]
        found = {} if before else {one: COMMANDS[one].summary for one in COMMANDS}
        found |= _keys(current, config_groups([Path(one).expanduser() for one in folders]))
    return {word: meaning for word, meaning in found.items() if word.startswith(current)}


def _keys(current: str, groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Groups and sections; of a section its keys; of a key its values, those of the next one in a
    list or in a sweep."""
    # By key its meaning, and the values that can be listed; `python -m scripts.config_reference`
    # writes it: the schema itself takes a sixth of a second to import, too long for the Tab key.
    file = Path(__file__).with_name("keys.json")
    keys: dict[str, tuple[str, list[str]]] = json.loads(file.read_text(encoding="utf-8"))
    key, equals, value = current.partition("=")
    if equals:
        options = groups.get(key) or keys.get(key, ("", []))[1]
        typed = f"{key}={value[: max(value.rfind(','), value.rfind('[')) + 1]}"
        return dict.fromkeys((f"{typed}{option}" for option in options), "")
    if "." in current:
        return {f"{name}=": meaning for name, (meaning, _) in keys.items()}
    found = {f"{group}=": ", ".join(all_) for group, all_ in groups.items() if len(all_) > 1}
    return found | dict.fromkeys((f"{name.partition('.')[0]}." for name in keys), "")
