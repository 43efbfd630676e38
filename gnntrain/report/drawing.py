"""Figures by matplotlib, drawn as SVG into a page, and as files."""

from __future__ import annotations

import colorsys
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter

SPLITS = {"train": "#8d99ae", "val": "#3a86ff", "test": "#f4845f"}
ACCENT = "#3a86ff"
# The page gives these three another value on dark ground.
_GROUND_COLORS = {"#1c2333": "var(--ink)", "#5d6880": "var(--quiet)", "#e3e7f0": "var(--line)"}
INK, QUIET, LINE = _GROUND_COLORS

_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": LINE,
    "axes.grid": True,
    "axes.labelcolor": QUIET,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 12,
    "grid.color": LINE,
    "legend.fontsize": "small",
    "legend.frameon": False,
    "legend.handlelength": 1,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "gnntrain",  # the same figure has the same ids
    "text.color": INK,
    "text.parse_math": False,  # a `$` in a name begins no formula
    "xtick.color": QUIET,
    "ytick.color": QUIET,
}
_CLASS_COLORS = (
    *("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f"),
    *("#d9b53a", "#b07aa1", "#ff9da7", "#9c755f", "#9aa0a6"),
)
_GOLDEN_ANGLE = 0.381966
_MARKED_POINTS = 60
_HOVER_POINTS = 1000
_LEGEND_LABELS = 12
_LARGEST = 1e300


def class_color(number: int) -> str:
    """The colour of a class or a group of runs: ten distinct ones, then hues around the circle."""
    if number < len(_CLASS_COLORS):
        return _CLASS_COLORS[number]
    rgb = colorsys.hls_to_rgb(number * _GOLDEN_ANGLE % 1, 0.58, 0.55)
    return to_hex(rgb)


@dataclass
class Panel:
    """Axes, and the text that each point shows under the mouse.

    Attributes:
        axes: To draw on.
        colors: Colours of the series by label, for a legend.
        points: x, y, text and number of the series of each point, in data coordinates.
        by_x: Whether the texts of all points at one x are shown together.
    """

    axes: Axes
    colors: dict[str, str] = field(default_factory=dict)
    points: list[tuple[float, float, str, int]] = field(default_factory=list)
    by_x: bool = False
    _num_series: int = 0

    def begin_series(self, label: str = "", color: str = "") -> None:
        """What is drawn next belongs to a new series; with a label it stands in the legend."""
        self._num_series += 1
        if label:
            self.colors[label] = color

    def add(self, artist: Artist, x: Iterable[Any], y: Iterable[Any], texts: Iterable[str]) -> None:
        """Make an artist part of the series, and its points answer the mouse."""
        artist.set_gid(f"series-{self._num_series}-{len(self.points)}")
        found = list(zip(map(float, x), map(float, y), texts, strict=True))
        step = 1 + len(found) // _HOVER_POINTS
        self.points += [
            (a, b, text, self._num_series)
            for a, b, text in found[::step]
            if math.isfinite(a) and math.isfinite(b)
        ]

    def curve(
        self, x: Sequence[float], y: Sequence[float], texts: Iterable[str], color: str, **style: Any
    ) -> None:
        """Draw a line with a gap where a value is not finite; points are marked if few."""
        values = finite(y)
        marker = "o" if len(values) <= _MARKED_POINTS else ""
        (line,) = self.axes.plot(
            x, values, color=color, lw=1.8, marker=marker, markersize=3.5, **style
        )
        self.add(line, x, values, texts)

    def dots(
        self, x: Iterable[float], y: Iterable[float], texts: Iterable[str], color: str, **style: Any
    ) -> None:
        """Draw points."""
        xs, ys = finite(x), finite(y)
        look = {"marker": "o", "markersize": 5.5, "markeredgewidth": 0, "alpha": 0.85, **style}
        (line,) = self.axes.plot(xs, ys, linestyle="", color=color, **look)
        self.add(line, xs, ys, texts)

    def epochs(self, label: str) -> None:
        """Name the axes of a figure over epochs."""
        self.axes.set_xlabel("epoch")
        self.axes.set_ylabel(label)
        ticks = MaxNLocator(steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
        self.axes.xaxis.set_major_locator(ticks)

    def logarithmic(self, *axes: str) -> None:
        """Make axes ("x", "y") logarithmic."""
        for name in axes:
            self.axes.set(**{f"{name}scale": "log"})
            axis: Axis = getattr(self.axes, f"{name}axis")
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())

    def from_zero(self, values: Sequence[float]) -> None:
        """Let the y axis begin at zero, for values that are not negative."""
        self.axes.set_ylim(0, 1.08 * np.nanmax([*finite(values), 0]) or 1)


def finite(values: Iterable[float]) -> npt.NDArray[np.float64]:
    """The values; NaN, which is not drawn, for those that are not finite or overflow an axis."""
    array = np.array([*values], dtype=np.float64)
    return np.where(np.abs(array) < _LARGEST, array, np.nan)


@dataclass(frozen=True)
class Drawing:
    """A figure as a page shows it.

    Attributes:
        svg: The element.
        colors: Colours of the series by label.
        hover: x, y in the SVG's coordinates, text and series of each point; and `by_x`.
    """

    svg: str
    colors: dict[str, str]
    hover: dict[str, Any]


Figure = Callable[[Panel], None]
"""Draws a figure; it chooses no size and no title."""


def draw(
    figure: Figure,
    prefix: str,
    width: int = 540,
    height: int = 300,
    *,
    title: str = "",
    folder: Path | None = None,
) -> Drawing:
    """Draw a figure as an SVG element.

    Args:
        figure: The figure.
        prefix: Begins the ids in the element, which are unique in a page.
        width, height: Size in CSS pixels.
        title: Of the figure's file.
        folder: Where the figure is written as a PNG file too, if anywhere.
    """
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(width / 72, height / 72), dpi=72)
        canvas.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02)
        panel = Panel(canvas.subplots())
        figure(panel)
        stream = io.StringIO()
        canvas.savefig(stream, format="svg", transparent=True)
        places = panel.axes.transData.transform([point[:2] for point in panel.points] or [(0, 0)])
        if folder is not None:
            panel.axes.set_title(title, loc="left")
            if 1 < len(panel.colors) <= _LEGEND_LABELS:
                handles = [Patch(color=color, label=name) for name, color in panel.colors.items()]
                panel.axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
            name = re.sub(r"\W+", "-", title).strip("-").lower()
            canvas.savefig(folder / f"{name}.png", dpi=200)
    points = [
        [round(x, 1), round(height - y, 1), text, series]
        for (x, y), (_, _, text, series) in zip(places.tolist(), panel.points, strict=False)
    ]
    return Drawing(
        svg=_for_page(stream.getvalue(), prefix),
        colors=panel.colors,
        hover={"points": points, "byX": panel.by_x},
    )


def _for_page(svg: str, prefix: str) -> str:
    """The element without its header, with ids of its own and the page's colours."""
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|\n\s*", " ", svg, flags=re.DOTALL)
    # Texts hold no `<` and no `>`: inside a tag, nothing comes from a user.
    return re.sub(r"<[^<>]*>", lambda tag: _tag_for_page(tag[0], prefix), svg[svg.index("<svg") :])


def _tag_for_page(tag: str, prefix: str) -> str:
    tag = re.sub(r'\bid="|href="#|url\(#', lambda match: f"{match[0]}{prefix}-", tag)
    for color, variable in _GROUND_COLORS.items():
        tag = tag.replace(color, variable)
    return re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", tag)
