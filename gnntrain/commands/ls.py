"""What there is to choose from, and what was made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain.commands.base import Arguments, Command
from gnntrain.errors import UserError
from gnntrain.paths import expanded, is_folder

if TYPE_CHECKING:
    from gnntrain.reporting.tables import Section

KINDS = ("datasets", "stores", "models", "runs")
_IN_FOLDERS = ("datasets", "stores", "runs")
_BRIEF = 5


def _ls(arguments: Arguments) -> int:
    kind, folder = [*arguments.positionals, None, None][:2]
    if kind is not None and kind not in KINDS:
        from gnntrain.config.problems import meant_or

        hint = meant_or(kind, KINDS, f"There are {', '.join(KINDS)}.")
        raise UserError(f"{kind!r} cannot be listed", hint)
    if folder is not None:
        if kind not in _IN_FOLDERS:
            hint = "As in `gnntrain ls runs FOLDER` or `gnntrain ls datasets FOLDER`."
            raise UserError(f"{kind} lie in no folder", hint)
        if not is_folder(expanded(folder)):
            raise UserError(f"there is no folder {folder}", "Give one that is there.")
    from gnntrain.reporting.tables import print_sections

    print_sections(_sections(kind, None if folder is None else expanded(folder)))
    return 0


def _sections(kind: str | None, folder: Path | None) -> Iterator[Section]:
    """The sections of one kind; without a kind all of them, briefly."""
    if kind in ("datasets", "stores", None):
        yield from _datasets_and_stores(kind, folder)
    if kind in ("models", None):
        from gnntrain.inventory import models

        yield _section("models", models.HEADER, models.model_rows(), [models.NOTE], 2)
    if kind in ("runs", None):
        from gnntrain.inventory import runs
        from gnntrain.reporting.run_lookup import RUNS
        from gnntrain.reporting.text import shown_path

        root = folder or RUNS
        rows = runs.run_rows(root)
        kept, more = _brief(rows, "gnntrain ls runs") if kind is None else (rows, [])
        notes = [*runs.run_notes(rows), *more]
        yield _section(f"runs in {shown_path(root)}", runs.HEADER, kept, notes, 3)


def _datasets_and_stores(kind: str | None, folder: Path | None) -> Iterator[Section]:
    from gnntrain.config import DatasetConfig
    from gnntrain.data.stores import find_stores, stores_folder
    from gnntrain.inventory import datasets, stores
    from gnntrain.reporting.tables import Section
    from gnntrain.reporting.text import shown_path

    place = folder or stores_folder(DatasetConfig())
    found = find_stores(place)
    if kind is None:
        names = ", ".join(datasets.dataset_names())
        yield Section("data sets", [names, "Their sizes: `gnntrain ls datasets`."])
    elif kind == "datasets":
        rows = datasets.dataset_rows(found)
        yield _section("data sets", datasets.HEADER, rows, [datasets.NOTE])
    rows = stores.store_rows(found)
    notes = [stores.NONE_YET]
    if found:
        notes = [f"{stores.total(found)}; `gnntrain clean` removes stores."]
    if kind is None:
        rows, more = _brief(rows, "gnntrain ls stores")
        notes += more
    yield _section(f"stores in {shown_path(place)}", stores.HEADER, rows, notes, 2)


def _brief(rows: list[list[str]], more: str) -> tuple[list[list[str]], list[str]]:
    """The first rows, and a sentence about the others."""
    left_out = len(rows) - _BRIEF
    return rows[:_BRIEF], [f"{left_out} more: `{more}`."] if left_out > 0 else []


def _section(
    title: str,
    header: Sequence[str],
    cells: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    left: int = 1,
) -> Section:
    from gnntrain.reporting.tables import Section, rows

    return Section(title, [*([rows(header, cells, left=left)] if cells else []), *notes])


COMMAND = Command(
    "[datasets|stores|models|runs [FOLDER]]",
    "list data sets, prepared stores, models, runs",
    "Data sets with their sizes and prepared stores, models with their parameters, runs "
    "with status, metric, best epoch and time. Without a word: all of them, briefly. FOLDER is "
    "where runs or stores lie, if not at their usual places.",
    ["gnntrain ls", "gnntrain ls datasets", "gnntrain ls stores", "gnntrain ls runs"],
    _ls,
    positionals=["kind", "folder"],
    num_optional=2,
)
