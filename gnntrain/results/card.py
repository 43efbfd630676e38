"""The model card: what a model predicts, its metrics, and its use without gnntrain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from jinja2 import Environment, PackageLoader, StrictUndefined

from gnntrain.data.summary import from_plain
from gnntrain.reporting.text import fence, format_metric, markdown

_SHOWN_NAMES = 50


def model_card(about: Mapping[str, Any], source: str) -> str:
    """The text of `README.md`.

    Args:
        about: Content of `model.json`.
        source: Content of `model.py`.
    """
    environment = Environment(
        loader=PackageLoader("gnntrain.results"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
        undefined=StrictUndefined,
    )
    environment.filters |= {"metric": format_metric, "shown": _shown}
    environment.filters |= {"plain": markdown, "fence": fence}
    return environment.get_template("card.md.j2").render(
        about,
        names=list(dict.fromkeys(name for found in about["metrics"].values() for name in found)),
        read=from_plain(about["data"]),
        source=source.rstrip(),
        yaml=yaml.safe_dump(about["config"], sort_keys=False, allow_unicode=True).rstrip(),
    )


def _shown(names: Sequence[Any]) -> str:
    return ", ".join(map(markdown, names[:_SHOWN_NAMES])) + ", …" * (len(names) > _SHOWN_NAMES)
