"""A page as one HTML file that needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from datetime import datetime
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gnntrain import __version__
from gnntrain.report import figures, tables
from gnntrain.report.drawing import Drawing, Figure, to_svg
from gnntrain.report.pages import Page
from gnntrain.training.records import json_safe

_LOADER = PackageLoader("gnntrain.report")


def to_html(page: Page) -> str:
    """The page as HTML.

    Names of the user are escaped. Besides, the page's policy lets a browser load nothing, and run
    only the script whose digest it names.
    """
    environment = Environment(
        loader=_LOADER,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"figures": figures, "tables": tables, "partial": partial}
    numbers = itertools.count()

    def drawn(figure: Figure, width: int, height: int) -> Drawing:
        return to_svg(figure, f"figure-{next(numbers)}", width, height)

    environment.filters |= {"json": _json, "digest": _digest, "drawn": drawn}
    return environment.get_template("page.html.j2").render(
        page,
        script=_LOADER.get_source(environment, "page.js")[0],
        footer=f"Made by gnntrain {__version__} on {datetime.now():%Y-%m-%d %H:%M}.",
    )


def _json(value: Any) -> Markup:
    """JSON inside a script element: without `<`, which could end the element."""
    text = json.dumps(json_safe(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _digest(script: str) -> Markup:
    digest = hashlib.sha256(script.encode()).digest()
    return Markup(f"'sha256-{base64.b64encode(digest).decode()}'")
