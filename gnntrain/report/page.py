"""A report as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from gnntrain import __version__
from gnntrain.report.content import Report
from gnntrain.training.records import json_safe


def to_html(report: Report) -> str:
    """The report as a page.

    All that comes from the user is escaped. Besides, the page's own policy lets a browser load
    nothing and run nothing but the two scripts whose digests it names.
    """
    environment = Environment(
        loader=PackageLoader("gnntrain.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"json": _json, "hash": _digest}
    return environment.get_template("page.html.j2").render(
        report=report,
        style=_asset("page.css"),
        # a browser sees line ends of one kind, and the digest must too
        scripts=[get_plotlyjs().replace("\r\n", "\n"), _asset("page.js")],
        footer=f"Made by gnntrain {__version__} on {datetime.now():%Y-%m-%d %H:%M}.",
    )


def _asset(name: str) -> str:
    return resources.files("gnntrain.report").joinpath("assets", name).read_text(encoding="utf-8")


def _json(value: Any) -> Markup:
    """JSON inside a script element: no `<` in it, so that nothing there can end it."""
    text = json.dumps(json_safe(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _digest(script: str) -> Markup:
    digest = hashlib.sha256(script.encode()).digest()
    return Markup(f"'sha256-{base64.b64encode(digest).decode()}'")
