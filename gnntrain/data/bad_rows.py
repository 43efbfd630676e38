"""Bad rows of a user's files: counted, shown, and refused or left out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from gnntrain.data.graph import Int64Array
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.data.tables import Table

NUM_SHOWN = 10

Record = Sequence[str]
"""One row's fields as text."""

_logger = logging.getLogger("gnntrain")


class BadRows:
    """Collects bad rows over several files.

    Args:
        policy: "error": `report` raises with the first rows and the total. "skip": the rows
            are left out and `report` warns with the same text.
        source: What the rows are of, also an attribute; the key of the policy is told of
            `dataset=files` alone.
    """

    def __init__(self, policy: Literal["error", "skip"], source: str = "dataset=files") -> None:
        self._policy = policy
        self.source = source
        self._left_out: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._shown: list[tuple[Path, int, str]] = []
        self._hints: dict[str, None] = {}

    def add(
        self,
        source: Table,
        rows: Int64Array,
        reason: Callable[[Record], str],
        hint: str = "",
    ) -> None:
        """Note rows (numbers that `source` understands); `reason` says why, from the fields."""
        if not len(rows):
            return
        for file, here in source.by_file(np.sort(rows)):
            self._counts[file.path.name] += len(here)
            shown = here[: NUM_SHOWN - len(self._shown)]
            for number, record in file.read_fields(shown) if len(shown) else []:
                report = f"  {file.path} {file.unit} {number}: {reason(record)}"
                self._shown.append((file.path, number, report))
                has_digit = any(field[:1].isdigit() for field in record)
                if file.unit == "line" and number == 1 and not has_digit:
                    self._hints["If line 1 holds column names, set dataset.header=true."] = None
        if hint:
            self._hints[hint] = None

    @property
    def left_out(self) -> dict[str, str]:
        """For the summary: the rows of each file that were left out, and why."""
        return {f"{count:,} rows of {name}": "bad" for name, count in self._left_out.items()}

    def report(self) -> None:
        """Report the bad rows added so far, if any.

        Raises:
            UserError: There are bad rows and the policy is "error".
        """
        if not self._counts:
            return
        total = self._counts.total()
        counts = ", ".join(f"{name}: {count}" for name, count in self._counts.items())
        rows = "1 bad row" if total == 1 else f"{total} bad rows"
        found = f"{self.source}: {rows} ({counts})."
        lines = [report for _, _, report in sorted(self._shown)]
        if total > NUM_SHOWN:
            lines.insert(0, f"The first {NUM_SHOWN}:")
        self._left_out += self._counts
        hints = list(self._hints)
        for noted in (self._counts, self._shown, self._hints):
            noted.clear()
        # The hint stands before the ten rows.
        if self._policy == "error":
            or_skip = ", or set dataset.bad_rows=skip to leave them out"
            hints.append(f"Correct them{or_skip * (self.source == 'dataset=files')}.")
            raise UserError(found, "\n".join([" ".join(hints), *lines]))
        said = " ".join([found, "They are left out.", *hints])
        _logger.warning("%s", "\n".join([said, *lines]))
