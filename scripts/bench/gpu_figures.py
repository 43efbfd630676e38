"""What the GPU benchmark has measured: figures, their ratios, and how they are told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESIDENT = "products, sage"
CACHED = "products, sage, 10 % of the rows cached"
FROM_HOST = "products, sage, drawn by the CPU"
BY_TORCH = "products, sage, torch's operators"
GATHERING = "products, sampling and gathering"
WHOLEGRAPH = "products, sampling and gathering, WholeGraph"

WORK = ("edges_per_batch", "rows_per_batch")
"""The notes of figures that are fair to compare only where they agree."""

_MOST_APART = 0.02


@dataclass
class Figure:
    """A case's result.

    Attributes:
        name, unit: What, in what.
        rounds: Every round's.
        median, lower, upper: Over the rounds, with the quartiles.
        must: The bound, if there is one.
        reached: Whether the median keeps to it.
        notes: What else is worth telling.
    """

    name: str
    unit: str
    rounds: list[float]
    median: float
    lower: float
    upper: float
    must: float | None
    reached: bool | None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ratio:
    """One figure's median over another's.

    Attributes:
        value: None where the two did not do the same work.
        must: What it must reach.
        reached: Whether it does.
        unfair: In what the work differed.
    """

    value: float | None
    must: float
    reached: bool | None
    unfair: str | None = None


# What is told, the figure above the line, the one below it, and the bound.
_RATIOS = [
    ("speed with 10 % cached, of all rows on the GPU", RESIDENT, CACHED, 0.6),
    ("speed-up over the CPU's sampler", FROM_HOST, RESIDENT, 10.0),
    ("speed-up over torch's operators", BY_TORCH, RESIDENT, 1.0),
    ("speed-up over WholeGraph, sampling and gathering", GATHERING, WHOLEGRAPH, 1.5),
]


def ratios(figures: Sequence[Figure]) -> dict[str, Ratio]:
    """The ratios of which both figures were measured."""
    known = {one.name: one for one in figures}
    return {
        name: _ratio(known[above], known[below], must)
        for name, above, below, must in _RATIOS
        if above in known and below in known
    }


def _ratio(above: Figure, below: Figure, must: float) -> Ratio:
    apart = [
        f"{key}: {above.notes[key]:.0f} and {below.notes[key]:.0f}"
        for key in WORK
        if key in above.notes
        and abs(above.notes[key] - below.notes[key]) > _MOST_APART * below.notes[key]
    ]
    if apart:
        return Ratio(None, must, None, "; ".join(apart))
    value = above.median / below.median
    return Ratio(value, must, value >= must)


@dataclass
class Report:
    """What came of the cases.

    Attributes:
        machine: Where, with which versions.
        figures: Of those that were measured.
        left_out: Why others cannot be measured here.
        failures: The tracebacks of those that failed.
    """

    machine: Mapping[str, Any]
    figures: list[Figure] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write all of it, with the ratios, as JSON."""
        content = {
            "machine": self.machine,
            "figures": [asdict(one) for one in self.figures],
            "ratios": {name: asdict(one) for name, one in ratios(self.figures).items()},
            "left_out": self.left_out,
            "failures": self.failures,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def show(self, console: Console) -> None:
        """The figures as a table, then the ratios and what was left out."""
        table = Table(title="on a GPU, bf16, batches of 1,024", title_justify="left")
        table.add_column("what")
        for name in ("median", "quartiles", "unit", "must", "reached"):
            table.add_column(name, justify="right")
        for one in self.figures:
            must = "" if one.must is None else f"{one.must:.3g}"
            reached = {None: "", True: "yes", False: "no"}[one.reached]
            spread = f"{one.lower:.3g} - {one.upper:.3g}"
            table.add_row(one.name, f"{one.median:.3g}", spread, one.unit, must, reached)
        console.print(table)
        for name, ratio in ratios(self.figures).items():
            console.print(f"{name}: {_in_words(ratio)}", highlight=False)
        for name, why in self.left_out.items():
            console.print(f"{name}: left out, {why}", highlight=False, markup=False)


def _in_words(ratio: Ratio) -> str:
    if ratio.value is None:
        return f"no fair comparison ({ratio.unfair})"
    reached = "reached" if ratio.reached else "not reached"
    return f"{ratio.value:.2f} (at least {ratio.must:g}: {reached})"
