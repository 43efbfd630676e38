"""Stores that are not needed any more, removed."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain.commands.base import Arguments, Command, option, say, switch
from gnntrain.errors import RunError, UserError
from gnntrain.paths import expanded

if TYPE_CHECKING:
    from gnntrain.data.stores import FoundStore

_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


def _clean(arguments: Arguments) -> int:
    from gnntrain.config import DatasetConfig
    from gnntrain.data.stores import find_stores, stores_folder
    from gnntrain.inventory.stores import total
    from gnntrain.reporting.text import shown_path

    given = arguments.positionals[0] if arguments.positionals else None
    folder = stores_folder(DatasetConfig()) if given is None else expanded(given)
    if given is not None and not folder.is_dir():
        raise UserError(f"there is no folder {given}", "Give one that is there.")
    begin = time.time() - (arguments.older_than or 0.0)
    found = [store for store in find_stores(folder) if store.last_used <= begin]
    if not arguments.all:
        for store in found:
            if store.is_of_object:
                say(
                    f"kept {store.path.name}: its graph was given in Python and cannot be built "
                    "again without it; --all removes it, too"
                )
        found = [store for store in found if not store.is_of_object]
    if not found:
        say(f"no store to remove in {shown_path(folder)}")
        return 0
    if not arguments.yes:
        _show(found, folder)
        if not _is_agreed(f"Remove {total(found)}?"):
            say("nothing was removed")
            return 0
    _remove(found)
    return 0


def _seconds(age: str) -> float:
    """An age such as 30d in seconds."""
    read = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([hdw])", age)
    if read is None:
        hint = "As in `--older-than 30d`: a number and h (hours), d (days) or w (weeks)."
        raise UserError(f"--older-than {age} is no age", hint)
    return float(read[1]) * _HOURS[read[2]] * 3600


def _show(found: list[FoundStore], folder: Path) -> None:
    from gnntrain.inventory.stores import HEADER, store_rows
    from gnntrain.reporting.tables import Section, print_sections, rows
    from gnntrain.reporting.text import shown_path

    if not sys.stdin.isatty():
        raise UserError(
            "clean asks before it removes stores, and there is no terminal to ask on",
            "Add --yes, perhaps with --older-than 30d; `gnntrain ls stores` shows them.",
        )
    table = rows(HEADER, store_rows(found), left=2)
    note = (
        "A run whose store is gone builds it again when it is needed, where the raw files are "
        "still there."
    )
    print_sections([Section(f"stores in {shown_path(folder)}", [table, note])])


def _is_agreed(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        say("")
        return False


def _remove(found: list[FoundStore]) -> None:
    """Remove what can be removed, and say what was and what was not.

    Raises:
        RunError: The file system refuses.
    """
    from gnntrain.data.stores import StoreInUse, remove_store
    from gnntrain.inventory.stores import total

    removed: list[FoundStore] = []
    refused: list[str] = []
    for store in found:
        try:
            remove_store(store)
            removed.append(store)
        except StoreInUse:
            say(f"kept {store.path.name}: it is in use")
        except FileNotFoundError:  # another process was faster
            continue
        except OSError as error:
            refused.append(f"{store.path} cannot be removed: {error.strerror or error}")
    say(f"removed {total(removed)}")
    if refused:
        raise RunError(refused[0], f"{len(refused)} in all." if len(refused) > 1 else None)


COMMAND = Command(
    "[FOLDER] [--older-than AGE] [--all] [--yes]",
    "remove graph stores that are not needed any more",
    "Shows the stores in the user's cache folder, or in FOLDER, and asks whether to remove them. "
    "Stores that a process uses are kept, and so is everything that is no store. What is removed "
    "can be built again from the raw files, and a data set's code, if they are as they were: "
    "training, `resume` and `predict` do so by themselves. "
    "Stores of graphs that were given in Python cannot: they are kept without --all. "
    "`gnntrain ls stores` shows sizes and when each was last used.",
    ["gnntrain clean", "gnntrain clean --older-than 30d --yes"],
    _clean,
    positionals=["folder"],
    num_optional=1,
    options=[
        option("--older-than", "AGE", "only stores not used for so long: 30d", type=_seconds),
        switch("--all", "also stores of graphs given in Python, which cannot be built again"),
        switch("--yes", "do not ask"),
    ],
)
