"""Every key, its meaning and the values that can be listed, as the YAML files' comments say.

Tests hold the comments equal with the schema; reading them takes a few milliseconds, importing the
schema a quarter of a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnntrain.groups import conf_dir

_KEY = re.compile(r"^ *([\w-]+):")
# "What it means. One of none, batch, layer; default none."
_COMMENT = re.compile(r"^(?P<meaning>.*?[.?])? ?(?P<expected>[^.;]*(?:\.\d[^.;]*)*); default ")
_CHOICE = re.compile(r"[\w+-]+")
_NO_KEYS = ("experiment",)
# What the choice of a group's option says already.
_CHOSEN = re.compile(
    r"(dataset|model|sampler|evaluation|sweep)\.name|logger\.(\w+)\.\2|\w+\.defaults"
)


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the configuration.

    Attributes:
        name: Dotted, as it is typed.
        meaning: In a sentence.
        choices: The values that can be listed.
    """

    name: str
    meaning: str
    choices: tuple[str, ...]


def known_keys(config_dirs: Sequence[Path] = ()) -> dict[str, Key]:
    """All keys by name; of a group whose options have different keys, those of all of them."""
    found: dict[str, Key] = {}
    for folder in (conf_dir(), *config_dirs):
        for file in sorted(folder.glob("*/*.yaml")):
            group = file.parent.name
            if group in _NO_KEYS:
                continue
            section = f"{group}.{file.stem}" if group == "logger" else group
            for key in _keys_of(file, section):
                before = found.get(key.name)
                found[key.name] = key if before is None else _joined(before, key)
    return found


def _joined(first: Key, second: Key) -> Key:
    choices = tuple(dict.fromkeys((*first.choices, *second.choices)))
    return Key(first.name, first.meaning, choices)


def _keys_of(file: Path, section: str) -> Iterator[Key]:
    comment: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        match = _KEY.match(line)
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip("# "))
            continue
        if match is not None and not _CHOSEN.fullmatch(f"{section}.{match[1]}"):
            yield Key(f"{section}.{match[1]}", *_read(" ".join(comment)))
        comment = []


def _read(comment: str) -> tuple[str, tuple[str, ...]]:
    """What a comment says a key means, and the values that it lists."""
    match = _COMMENT.match(comment)
    if match is None:
        return comment.partition(". ")[0], ()
    expected = match["expected"]
    if expected.startswith("One of "):
        expected = expected.removeprefix("One of ")
    else:
        expected = expected[:1].lower() + expected[1:]
    if "path" in expected or "text" in expected:
        return match["meaning"] or "", ()
    parts = re.split(r", | or ", expected)
    return match["meaning"] or "", tuple(part for part in parts if _CHOICE.fullmatch(part))
