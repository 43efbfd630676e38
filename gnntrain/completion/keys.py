"""Every key, its meaning and the values that can be listed.

`python -m scripts.config_reference` writes them from the schema to `keys.json`: the schema itself
takes a sixth of a second to import, too long for the Tab key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple


class Key(NamedTuple):
    """A key of the configuration.

    Attributes:
        name: Dotted, as it is typed.
        meaning: In a sentence.
        choices: The values that can be listed.
    """

    name: str
    meaning: str
    choices: tuple[str, ...]


def known_keys() -> dict[str, Key]:
    """All keys by name; of a section whose options have different keys, those of all of them."""
    text = Path(__file__).with_name("keys.json").read_text(encoding="utf-8")
    return {
        name: Key(name, meaning, tuple(choices))
        for name, (meaning, choices) in json.loads(text).items()
    }
