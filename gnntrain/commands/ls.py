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
    from gnntrain.config import DatasetConfig
    from gnntrain.data.stores import find_stores, stores_folder
    from gnntrain.inventory import datasets, models, runs, stores
    from gnntrain.reporting.run_lookup import RUNS
    from gnntrain.reporting.tables import Section, rows
    from gnntrain.reporting.text import shown_path

    def section(
        title: str,
        header: Sequence[str],
        cells: Sequence[Sequence[str]],
        notes: Sequence[str],
        left: int,
        command: str,
    ) -> Section:
        kept = cells[:_BRIEF] if kind is None and command else cells
        more = [f"{len(cells) - len(kept)} more: `{command}`."] if len(kept) < len(cells) else []
        return Section(title, [*([rows(header, kept, left=left)] if kept else []), *notes, *more])

    if kind in ("datasets", "stores", None):
        place = folder or stores_folder(DatasetConfig())
        found = find_stores(place)
        if kind is None:
            names = ", ".join(datasets.dataset_names())
            yield Section("data sets", [names, "Their sizes: `gnntrain ls datasets`."])
        elif kind == "datasets":
            sizes = datasets.dataset_rows(found)
            yield section("data sets", datasets.HEADER, sizes, [datasets.NOTE], 1, "")
        note = f"{stores.total(found)}; `gnntrain clean` removes stores."
        title, cells = f"stores in {shown_path(place)}", stores.store_rows(found)
        notes = [note if found else stores.NONE_YET]
        yield section(title, stores.HEADER, cells, notes, 2, "gnntrain ls stores")
    if kind in ("models", None):
        yield section("models", models.HEADER, models.model_rows(), [models.NOTE], 2, "")
    if kind in ("runs", None):
        root = folder or RUNS
        cells, title = runs.run_rows(root), f"runs in {shown_path(root)}"
        yield section(title, runs.HEADER, cells, runs.run_notes(cells), 3, "gnntrain ls runs")


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
