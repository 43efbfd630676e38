"""What there is to choose from, and what was made of it."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain.commands.base import Arguments, Command
from gnntrain.errors import UserError
from gnntrain.listing.kinds import KINDS

if TYPE_CHECKING:
    from gnntrain.listing.kinds import Listing

_BRIEF = 5


def _ls(arguments: Arguments) -> int:
    kind, folder = [*arguments.words, None, None][:2]
    if kind is not None and kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        guess = f"Did you mean {near[0]}? " if near else ""
        raise UserError(f"{kind!r} cannot be listed", f"{guess}There are {', '.join(KINDS)}.")
    if folder is not None:
        if kind not in ("datasets", "stores", "runs"):
            hint = "As in `gnntrain ls runs FOLDER` or `gnntrain ls datasets FOLDER`."
            raise UserError(f"{kind} lie in no folder", hint)
        if not Path(folder).expanduser().is_dir():
            raise UserError(f"there is no folder {folder}", "Give one that is there.")
    from gnntrain.reporting.text_report import TextReport

    report = TextReport()
    for listing in _listings(kind, folder):
        report.section(listing.title)
        if listing.rows:
            report.table(listing.header, listing.rows, left=listing.left)
        for note in listing.notes:
            report.note(note)
    return 0


def _listings(kind: str | None, folder: str | None) -> list[Listing]:
    listings: list[Listing] = []
    if kind in ("datasets", "stores", None):
        from gnntrain.config import DatasetConfig
        from gnntrain.listing.datasets import datasets
        from gnntrain.listing.stores import stores
        from gnntrain.run_store import stores_folder

        place = Path(folder).expanduser() if folder else stores_folder(DatasetConfig())
        if kind == "stores":
            return [stores(place)]
        sizes, prepared = datasets(place)
        if kind is None:
            more = "gnntrain ls datasets"
            sizes, prepared = sizes.names(f"Their sizes: `{more}`."), prepared.brief(_BRIEF, more)
        listings += [sizes, prepared]
    if kind in ("models", "samplers", None):
        from gnntrain.listing.models import models, samplers

        listings += [models()] if kind != "samplers" else []
        listings += [samplers()] if kind != "models" else []
    if kind in ("runs", None):
        from gnntrain.listing.runs import runs
        from gnntrain.reporting.run_lookup import RUNS

        listing = runs(Path(folder).expanduser() if folder else RUNS)
        listings.append(listing.brief(_BRIEF, "gnntrain ls runs") if kind is None else listing)
    return listings


COMMAND = Command(
    "[datasets|stores|models|samplers|runs [FOLDER]]",
    "list data sets and what is prepared, models, samplers, runs",
    "Data sets with their sizes and prepared stores, models with their parameters, samplers, runs "
    "with status, metric, best epoch and time. Without a word: all of them, briefly. stores are "
    "listed with size and last use. FOLDER is where runs or stores lie, if not at their usual "
    "places.",
    ["gnntrain ls", "gnntrain ls datasets", "gnntrain ls stores", "gnntrain ls runs"],
    _ls,
    words=["kind", "folder"],
    num_optional=2,
)
