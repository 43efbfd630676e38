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

from gnntrain.config.models import (
    HeteroLayeredConfig,
    LayeredConfig,
    StackConfig,
    model_names,
    model_section,
)
from gnntrain.config.schema import Config, DatasetConfig, FilesConfig, LoggerConfig
from gnntrain.config.section import Section, choices, in_words, key_schema, section_class

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
_COMMON: Mapping[str, Mapping[str, type[Section]]] = {
    "dataset": {"every data set": DatasetConfig},
    "model": {
        "every model but `plugin`": StackConfig,
        "models of graphs with one type": LayeredConfig,
        "models of typed graphs": HeteroLayeredConfig,
    },
}
_OPTIONS = {
    "dataset": {
        "`dataset=synthetic`, `synthetic_reddit`, `synthetic_products`": "synthetic",
        "`dataset=synthetic_mag`": "synthetic_mag",
        "published data sets": "cora",
        "`dataset=files`": "files",
    },
    "model": {f"`model={name}`": name for name in (*model_names(), "plugin")},
    "sweep": {f"`sweep={name}`": name for name in ("basic", "optuna")},
}
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
    found: dict[str, str] = {}
    for key in kind.model_fields:
        section = section_class(kind, key, {})
        found |= {key: str(section.__doc__)} if section is not None else {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("gnntrain.config"):
            found |= extract_docstrings_from_cls(base, use_inspect=True)
    name = kind.model_fields["name"].default if "name" in kind.model_fields else None
    if issubclass(kind, StackConfig) and kind not in _COMMON["model"].values():
        found |= dict(_ARGUMENT.findall(model_section(name).docstring))
    return {key: " ".join(cleandoc(text).split()) for key, text in found.items()}


def tables() -> Iterator[tuple[str, str, type[Section], list[Key]]]:
    """(section, title, class, the keys that no common table of the section has) of every class."""
    for section in Config.model_fields:
        common = _COMMON.get(section, {})
        kinds = [(title, section, kind) for title, kind in common.items()]
        for title, name in _OPTIONS.get(section, {}).items():
            found = section_class(Config, section, {"name": name})
            kinds += [(title, section, found)] if found is not None else []
        for name in LoggerConfig.model_fields if section == "logger" else ():
            found = section_class(LoggerConfig, name, {})
            kinds += [(f"`{name}`", f"logger.{name}", found)] if found is not None else []
        told: list[Key] = []
        for title, prefix, kind in kinds or [("", section, type(getattr(Config(), section)))]:
            said, keys = meanings(kind), []
            for name, field in kind.model_fields.items():
                schema = key_schema(kind, name)
                accepts, default = in_words(schema), field.get_default(call_default_factory=True)
                keys.append(Key(f"{prefix}.{name}", said[name], accepts, choices(schema), default))
            keys = [key for key in keys if key not in told]
            if section in Config.named and kind is not FilesConfig:  # the title says the name
                keys = [key for key in keys if key.name != f"{section}.name"]
            told += keys if title in common else []
            yield section, title, kind, keys


def page() -> str:
    """The text of `docs/configuration.md`."""
    parts, said, before = [_HEAD], meanings(Config), ""
    for section, title, kind, keys in tables():
        if section != before:
            parts.append(f"\n## {section}\n\n{said[section]}\n")
        before = section
        if title and (keys or section == "logger"):
            of_logger = meanings(LoggerConfig).get(title.strip("`"))
            summary = of_logger or str(kind.__doc__).splitlines()[0]
            parts.append(f"\n### {section}: {title}\n\n{summary}\n")
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
            words = (*found.get(key.name, []), *(() if takes_files else key.choices))
            found[key.name] = list(dict.fromkeys(words))
    lines = (f"{json.dumps(key)}: {json.dumps(values)}" for key, values in found.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Write both files."""
    PAGE.write_text(page(), encoding="utf-8")
    KEYS.write_text(listed(), encoding="utf-8")


if __name__ == "__main__":
    main()
