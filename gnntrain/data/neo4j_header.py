"""Headers of Neo4j's bulk import: `personId:ID(Person),name:string,:LABEL`.

A field is a name and a kind. `ID`, `START_ID` and `END_ID` may name a space of ids in parentheses.
`LABEL` holds labels separated by semicolons, and so are the numbers of a list such as `float[]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FIELD = re.compile(
    r"(?P<name>.*?):(?P<kind>[A-Za-z_-]+(?:\[\])?)(?:\((?P<space>.*?)\))?(?:\{.*\})?"
)
_ROLES = ("ID", "LABEL", "START_ID", "END_ID", "TYPE")
_NUMBERS = frozenset({"int", "long", "float", "double", "byte", "short", "boolean"})


@dataclass(frozen=True)
class Neo4jHeader:
    """What the first line of a Neo4j file says.

    Attributes:
        names: Names of the columns without their kinds; `:LABEL` and the like where they have none.
        roles: Places of `ID`, `LABEL`, `START_ID`, `END_ID` and `TYPE`.
        spaces: The space of ids of `ID`, `START_ID` and `END_ID`, "" where none is named.
        lists: Places of lists of numbers.
        texts: Places of what is neither a number nor a list of them, with its kind.
    """

    names: tuple[str, ...]
    roles: Mapping[str, int]
    spaces: Mapping[str, str]
    lists: frozenset[int]
    texts: Mapping[int, str]


def neo4j_header(names: Sequence[str]) -> Neo4jHeader | None:
    """The header that a table's column names are; None where they are no Neo4j's."""
    fields = [_FIELD.fullmatch(name.strip()) for name in names]
    kinds = [field["kind"] if field is not None else "string" for field in fields]
    roles = {kind: place for place, kind in enumerate(kinds) if kind in _ROLES}
    if not roles:
        return None
    plain = [kind.removesuffix("[]").lower() for kind in kinds]
    return Neo4jHeader(
        names=tuple(
            name.strip() if field is None else field["name"] or f":{field['kind']}"
            for name, field in zip(names, fields, strict=True)
        ),
        roles=roles,
        spaces={
            kind: (field["space"] or "")
            for place, (kind, field) in enumerate(zip(kinds, fields, strict=True))
            if field is not None and roles.get(kind) == place
        },
        lists=frozenset(
            place
            for place, kind in enumerate(kinds)
            if kind.endswith("[]") and plain[place] in _NUMBERS
        ),
        texts={
            place: kinds[place]
            for place, kind in enumerate(plain)
            if kinds[place] not in _ROLES and kind not in _NUMBERS
        },
    )
