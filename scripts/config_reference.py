"""Writes every key of the schema with its meaning: a page for readers, a list for the Tab key.

    python -m scripts.config_reference

A test holds that `docs/configuration.md` and `gnntrain/commands/keys.json` are up to date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

from pydantic._internal._docs_extraction import extract_docstrings_from_cls

from gnntrain.config import Config, models, schema
from gnntrain.config.section import Section, base_class, choices, in_words, key_schema

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
KEYS = Path(__file__).parents[1] / "gnntrain" / "commands" / "keys.json"

_HEAD = """\
# Every key

Written by `python -m scripts.config_reference` from the schema. `gnntrain --cfg job` prints the
values of a run; `conf/` holds the files that are put together.

A key is set by `section.key=value`; a section's file is chosen by `section=name`, as in
`model=gat`. Lists are written `[a,b]`, nothing as `null`. Every mistake is reported at once, before
anything is loaded.
"""
_KINDS: Mapping[str, Mapping[str, type[Section]]] = {
    "dataset": {
        "every data set": schema.DatasetConfig,
        "`dataset=synthetic`, `synthetic_reddit`, `synthetic_products`": schema.SyntheticConfig,
        "`dataset=synthetic_mag`": schema.SyntheticMAGConfig,
        "published data sets": schema.BuiltinConfig,
        "`dataset=files`": schema.FilesConfig,
    },
    "model": {
        "every model but `plugin`": models.StackConfig,
        "models of graphs with one type": models.LayeredConfig,
        "models of typed graphs": models.HeteroLayeredConfig,
        **{
            f"`model={name}`": models.model_section(name)
            for name in (*models.model_names(), "plugin")
        },
    },
}
"""The classes of a section by the titles of their tables: common ones first, options in quotes."""
_BAR = "\\|"  # one that ends no cell
_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


class Key(NamedTuple):
    """A key of the schema: dotted, its docstring, type and range in words, and plain data."""

    name: str
    meaning: str
    accepts: str
    choices: list[str]
    default: object


def meanings(kind: type[Section]) -> dict[str, str]:
    """What each key of a class means: the docstring below it, or that of a model's argument, or of
    the class of the section."""
    sections = ((key, base_class(kind, key)) for key in kind.model_fields)
    found = {key: str(section.__doc__) for key, section in sections if section is not None}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("gnntrain.config"):
            found |= extract_docstrings_from_cls(base, use_inspect=True)
            found |= dict(_ARGUMENT.findall(vars(base).get("docstring", "")))
    return {key: " ".join(cleandoc(text).split()) for key, text in found.items()}


def tables() -> Iterator[tuple[str, str, type[Section], list[Key]]]:
    """(section, title, class, the keys that no common table of the section has) of every class."""
    for section, keys_of_default in Config():
        told: list[Key] = []
        for title, kind in _KINDS.get(section, {"": type(keys_of_default)}).items():
            said, keys = meanings(kind), []
            for name, field in kind.model_fields.items():
                if name == "name" and section in Config.named and kind is not schema.FilesConfig:
                    continue  # the title says it
                values = key_schema(kind, name)
                default = field.get_default(call_default_factory=True)
                words = (said[name], in_words(values), choices(values))
                keys.append(Key(f"{section}.{name}", *words, default))
            keys = [key for key in keys if key not in told]
            told += () if title.startswith("`") else keys
            yield section, title, kind, keys


def page() -> str:
    """The text of `docs/configuration.md`."""
    parts, said, before = [_HEAD], meanings(Config), ""
    for section, title, kind, keys in tables():
        if section != before:
            parts.append(f"\n## {section}\n\n{said[section]}\n")
        before = section
        if title and keys:
            parts.append(f"\n### {section}: {title}\n\n{str(kind.__doc__).splitlines()[0]}\n")
        if keys:
            parts.append("\n| key | meaning | value | default |\n|-|-|-|-|\n")
        for key in keys:
            cells = (f"`{key.name}`", key.meaning, key.accepts, f"`{json.dumps(key.default)}`")
            parts.append(f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |\n")
    return "".join(parts)


def listed() -> str:
    """The text of `keys.json`: by key the values that can be listed."""
    found: dict[str, list[str]] = {}
    for section, _, _, keys in tables():
        for key in keys:
            if key.name == f"{section}.name" and section != "run":
                continue  # `section=name` chooses it
            takes_files = "path" in key.accepts or "text" in key.accepts
            found.setdefault(key.name, [] if takes_files else key.choices)
    lines = (f"{json.dumps(key)}: {json.dumps(values)}" for key, values in found.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Write both files."""
    PAGE.write_text(page(), encoding="utf-8")
    KEYS.write_text(listed(), encoding="utf-8")


if __name__ == "__main__":
    main()
