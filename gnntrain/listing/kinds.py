"""The kinds of things that are listed, and what a list is. Nothing heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass, field

KINDS = ("datasets", "stores", "models", "samplers", "runs")


@dataclass(frozen=True)
class Listing:
    """One table.

    Attributes:
        title: What it lists.
        header: The columns' names.
        rows: Their cells.
        left: Columns, from the first, that stand to the left.
        notes: Sentences below the table.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    left: int = 1
    notes: list[str] = field(default_factory=list)

    def brief(self, num_rows: int, more: str) -> Listing:
        """The first rows only, with a word on how to see all."""
        left_out = len(self.rows) - num_rows
        if left_out <= 0:
            return self
        notes = [*self.notes, f"{left_out} more: `{more}`."]
        return Listing(self.title, self.header, self.rows[:num_rows], self.left, notes)

    def names(self, more: str) -> Listing:
        """The first column alone, as a sentence, with a word on how to see the others."""
        names = ", ".join(row[0] for row in self.rows)
        return Listing(self.title, [], [], notes=[names, more])
