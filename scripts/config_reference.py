"""Writes `docs/configuration.md`, a table of every key, from the schema.

    python -m scripts.config_reference

A test holds that the file is up to date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnntrain.config.loggers import LoggerConfig
from gnntrain.config.models import LayeredConfig, PluginConfig, model_sections
from gnntrain.config.schema import (
    BuiltinConfig,
    Config,
    DatasetConfig,
    FilesConfig,
    SyntheticConfig,
)
from gnntrain.config.types import Section, expected

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

_HEAD = """\
# Every key

Written by `python -m scripts.config_reference` from the schema. `gnntrain --cfg job` prints the
values of a run; `conf/` holds the files that are put together, with the same words.

A key is set by `section.key=value`; a section's file is chosen by `section=name`, as in
`model=gat`. Lists are written `[a,b]`, nothing as `null`. Every mistake is reported at once, before
anything is loaded.
"""

_DATASETS = [
    ("every data set", DatasetConfig),
    ("`dataset=synthetic`, `synthetic_reddit`, `synthetic_products`", SyntheticConfig),
    ("published data sets", BuiltinConfig),
    ("`dataset=files`", FilesConfig),
]


def page() -> str:
    """The page's text."""
    parts = [_HEAD]
    for name, field in Config.model_fields.items():
        parts.append(f"\n## {name}\n\n{field.description}\n")
        if name in ("dataset", "model"):
            parts += _variants(name, _DATASETS if name == "dataset" else _models())
        elif name == "logger":
            parts += _loggers()
        else:
            parts.append(_table(name, type(getattr(Config(), name))))
    return "".join(parts)


def _variants(section: str, variants: list[tuple[str, Any]]) -> Iterator[str]:
    """A table for what all have in common, and one for what each adds."""
    common = variants[0][1]
    for title, kind in variants:
        own = None if kind is common else _own_keys(kind, common)
        if own == []:
            continue
        yield f"\n### {section}: {title}\n\n{_first_line(kind)}\n"
        yield _table(section, kind, own)


def _models() -> list[tuple[str, Any]]:
    built_in = [(f"`model={name}`", kind) for name, kind in model_sections().items()]
    every = ("every model but `plugin`", LayeredConfig)
    return [every, *built_in, ("`model=plugin`", PluginConfig)]


def _own_keys(kind: type[Section], common: type[Section]) -> list[str]:
    return [
        key
        for key, field in kind.model_fields.items()
        if key != "name"
        and (key not in common.model_fields or common.model_fields[key].default != field.default)
    ]


def _loggers() -> Iterator[str]:
    for name, field in LoggerConfig.model_fields.items():
        kind = next(
            part
            for part in (field.annotation, *getattr(field.annotation, "__args__", ()))
            if isinstance(part, type) and issubclass(part, Section)
        )
        yield f"\n### logger: `{name}`\n\n{_first_line(kind)}\n"
        if kind.model_fields:
            yield _table(f"logger.{name}", kind)


def _table(section: str, kind: type[Section], keys: list[str] | None = None) -> str:
    rows = ["\n| key | meaning | value | default |\n|-|-|-|-|\n"]
    for key, field in kind.model_fields.items():
        if keys is not None and key not in keys:
            continue
        meaning, value = _cell(str(field.description)), _cell(expected(field))
        default = (
            "`" + _cell(json.dumps(_plain(field.get_default(call_default_factory=True)))) + "`"
        )
        rows.append(f"| `{section}.{key}` | {meaning} | {value} | {default} |\n")
    return "".join(rows)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _first_line(kind: type[Section]) -> str:
    return str(kind.__doc__).strip().splitlines()[0]


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
