"""What may be wrong with a configuration, and the one message that says it all."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gnntrain.errors import UserError

_LONGEST_VALUE = 60
_WIDEST = 56


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration."""

    key: str  # dotted, as `trainer.lr`; or what was typed, where it could not be read
    value: str  # as written
    expected: str  # what the key accepts, or why the value cannot be right
    hint: str | None = None  # what to write instead; None where `expected` says it
    beside: tuple[str, ...] = field(default=(), compare=False)  # other keys that it depends on

    @property
    def assignment(self) -> str:
        """What the user wrote, as the command line would have it."""
        return f"{self.key}={self.value}" if self.key else self.value


class ConfigError(UserError):
    """All mistakes of a configuration together: `problems` has each once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__(
            told(self.problems, "the configuration"),
            "`gnntrain --cfg job` prints every key with its value, "
            "`gnntrain --help` the choices of every group.",
        )
        self.args = (self.problems,)  # by which pickle makes it again


def told(problems: Iterable[Problem], where: str) -> str:
    """One message that lists all mistakes in `where`; a long list of choices comes last."""
    rows = [("given", "expected", "")]
    for one in problems:
        given, expected, hint = one.assignment, one.expected, one.hint or ""
        is_long_list = len(expected) > _WIDEST and hint.startswith("did you mean")
        rows.append((given, hint, expected) if is_long_list else (given, expected, hint))
    columns = [*zip(*rows, strict=True)][:2]
    first, second = (max(len(t) for t in column if len(t) <= _WIDEST) for column in columns)
    lines = [f"  {row[0]:{first}}  {row[1]:{second}}  {row[2]}".rstrip() for row in rows]
    number = "1 mistake" if len(rows) == 2 else f"{len(rows) - 1} mistakes"
    return "\n".join([f"{number} in {where}", *lines])


def as_typed(value: object) -> str:
    """`value` as a user would write it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(as_typed, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{as_typed(item)}" for key, item in value.items()) + "}"
    return str(value)


def shown(value: object) -> str:
    """`value` as a user would write it, cut where it is long."""
    text = as_typed(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that is most like `name`; None where none is."""
    folded = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), folded, cutoff=0.55)
    # People rarely get the first letter wrong.
    best = max(found, key=lambda one: one[:1] == name[:1].lower(), default=None)
    return None if best is None else folded[best]


def did_you_mean(name: str, choices: Iterable[str], otherwise: str = "") -> str | None:
    """A hint at the nearest choice, in a table of mistakes; or, with `otherwise`, a sentence of its
    own. `otherwise` or None where no choice is alike."""
    found = nearest(name, choices)
    if found is None:
        return otherwise or None
    return f"Did you mean {found}?" if otherwise else f"did you mean {found}?"
