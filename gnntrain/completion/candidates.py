"""What may stand at the end of a half-typed command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from gnntrain.completion.keys import known_keys
from gnntrain.groups import config_groups

_RUNS = Path("runs")
_LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word that may be meant, whole, and what it means."""

    word: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class VerbWords:
    """What completion has to know of a verb.

    Attributes:
        summary: What it does.
        words: Names of the words it takes.
        takes_keys: Whether it takes keys.
        options: Its own options with a value, and what they mean.
        switches: Those without.
    """

    summary: str
    words: Sequence[str] = ()
    takes_keys: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)


def candidates(
    line: str, verbs: Mapping[str, VerbWords], choices: Mapping[str, Sequence[str]]
) -> list[Candidate]:
    """The words that the last word of `line` may become; none where files may stand.

    Args:
        line: What was typed up to the cursor, the command first.
        verbs: The verbs by name.
        choices: What may stand for a verb's word, by the word's name; run directories and
            experiments are found here.
    """
    *before, current = _split(line)[1:] or [""]
    verb_name = before[0] if before and before[0] in verbs else None
    verb = verbs[verb_name or "train"]
    previous = before[-1] if before else ""
    if previous == "--cfg":
        found = [Candidate("job", "print the whole configuration")]
    elif previous in ("--config-dir", *verb.options):
        found = []
    elif current.startswith("-"):
        found = _options(verb)
    elif "=" in current:
        found = _values(current, _config_dirs(before))
    else:
        words = [word for word in before if "=" not in word and not word.startswith("-")]
        num_given = len(words) - (verb_name is not None)
        found = _words(verb, num_given, choices)
        if not before:
            found += [Candidate(name, one.summary) for name, one in verbs.items()]
        if verb.takes_keys and num_given >= len(verb.words):
            found += _keys(current, _config_dirs(before))
    return [one for one in found if one.word.startswith(current)]


def _split(line: str) -> list[str]:
    """The words so far; the last is empty after a blank."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quotation mark
        words = line.replace("'", "").replace('"', "").split()
    return [*words, ""] if not line or line[-1].isspace() else words


def _config_dirs(before: Sequence[str]) -> list[Path]:
    following = [after for word, after in pairwise(before) if word == "--config-dir"]
    joined = [word.partition("=")[2] for word in before if word.startswith("--config-dir=")]
    return [Path(folder).expanduser() for folder in (*following, *joined)]


def _options(verb: VerbWords) -> list[Candidate]:
    found = [Candidate(name, " ".join(text.split()[1:])) for name, text in verb.options.items()]
    found += [Candidate(name, text.strip()) for name, text in verb.switches.items()]
    if not verb.words:
        found += [
            Candidate("--cfg", "print the whole configuration"),
            Candidate("--config-dir", "choose from your own YAML files too"),
            Candidate("--multirun", "sweep"),
        ]
    return [*found, Candidate("--help", "more about it"), Candidate("--version")]


def _words(
    verb: VerbWords, num_given: int, choices: Mapping[str, Sequence[str]]
) -> list[Candidate]:
    """What may stand for the verb's next word."""
    if num_given >= len(verb.words):
        return []
    name = verb.words[num_given]
    if name.startswith("run"):
        names = sorted(file.parent.name for file in _RUNS.glob("*/config.yaml"))
        return [Candidate(one) for one in dict.fromkeys([*([_LATEST] if names else []), *names])]
    if name == "experiment":
        return [Candidate(one) for one in config_groups()["experiment"] if one != "none"]
    return [Candidate(one) for one in choices.get(name, ())]


def _keys(current: str, config_dirs: Sequence[Path]) -> list[Candidate]:
    """Groups and sections, or, once a section is typed, its keys."""
    keys = known_keys().values()
    if "." in current:
        return [Candidate(f"{key.name}=", key.meaning) for key in keys]
    groups = [
        Candidate(f"{group}=", ", ".join(options))
        for group, options in config_groups(config_dirs).items()
        if len(options) > 1
    ]
    sections = dict.fromkeys(key.name.partition(".")[0] for key in keys)
    return [*groups, *(Candidate(f"{section}.") for section in sections)]


def _values(current: str, config_dirs: Sequence[Path]) -> list[Candidate]:
    """Values of a key or a group; of a list, or of a sweep, those of the next one."""
    key, _, value = current.partition("=")
    options = config_groups(config_dirs).get(key)
    if options is None:
        known = known_keys().get(key)
        options = [] if known is None else list(known.choices)
    place = max(value.rfind(","), value.rfind("["))
    typed = f"{key}={value[: place + 1]}"
    return [Candidate(f"{typed}{option}") for option in options]
