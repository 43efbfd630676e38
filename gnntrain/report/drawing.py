"""Figures by matplotlib, drawn as SVG into a page, and as files."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb, to_hex
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
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
_MARKED_POINTS = 60
_HOVER_POINTS = 1000
_LEGEND_LABELS = 12
_LARGEST = 1e300


def class_color(number: int) -> str:
    """The colour of a class or a group of runs: ten distinct ones, then hues around the circle."""
    if number < 10:
        return to_hex(matplotlib.colormaps["tab10"](number))
    red, green, blue = hsv_to_rgb((number * 0.381966 % 1, 0.55, 0.8))  # by the golden angle
    return to_hex((red, green, blue))


Numbers = Iterable[Any]


@dataclass
class Panel:
    """Axes, and the text that each point shows under the mouse.

    A series has a label; the mouse over one of its points dims the others.

    Attributes:
        axes: To draw on.
        colors: Colours of the series by label, for a legend.
        points: x, y, text and label of the series of each point, in data coordinates.
        by_x: Whether the texts of all points at one x are shown together.
    """

    axes: Axes
    colors: dict[str, str] = field(default_factory=dict)
    points: list[tuple[float, float, str, str]] = field(default_factory=list)
    by_x: bool = False

    def add(
        self, artist: Any, x: Numbers, y: Numbers, texts: Iterable[str], label: str = ""
    ) -> None:
        """Make an artist part of a series, and its points answer the mouse."""
        is_line = isinstance(artist, Line2D)  # of a collection the first colour
        color: Any = artist.get_color() if is_line else np.ravel(artist.get_facecolor())[:4]
        self.colors.setdefault(label, to_hex(color))
        artist.set_gid(f"series-{[*self.colors].index(label)}-{len(self.points)}")
        found = list(zip(map(float, x), map(float, y), texts, strict=True))
        step = 1 + len(found) // _HOVER_POINTS
        self.points += [
            (a, b, text, label)
            for a, b, text in found[::step]
            if math.isfinite(a) and math.isfinite(b)
        ]

    def curve(
        self, x: Numbers, y: Numbers, texts: Iterable[str], label: str = "", **style: Any
    ) -> None:
        """Draw a line with a gap where a value is not finite; points are marked if few."""
        xs, ys = finite(x), finite(y)
        look = {"lw": 1.8, "marker": "o" if len(ys) <= _MARKED_POINTS else "", "markersize": 3.5}
        (line,) = self.axes.plot(xs, ys, **(look | style))
        self.add(line, xs, ys, texts, label)

    def dots(
        self, x: Numbers, y: Numbers, texts: Iterable[str], label: str = "", **style: Any
    ) -> None:
        """Draw points."""
        look = {"lw": 0, "marker": "o", "markersize": 5.5, "markeredgewidth": 0, "alpha": 0.85}
        self.curve(x, y, texts, label, **(look | style))

    def epochs(self, label: str) -> None:
        """Name the axes of a figure over epochs."""
        self.axes.set(xlabel="epoch", ylabel=label)
        ticks = MaxNLocator(steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
        self.axes.xaxis.set_major_locator(ticks)

    def logarithmic(self, *axes: str) -> None:
        """Make axes ("x", "y") logarithmic."""
        for name in axes:
            self.axes.set(**{f"{name}scale": "log"})
            axis = getattr(self.axes, f"{name}axis")
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())

    def from_zero(self, values: Numbers) -> None:
        """Let the y axis begin at zero, for values that are not negative."""
        self.axes.set_ylim(0, 1.08 * np.nanmax([*finite(values), 0]) or 1)


def finite(values: Numbers) -> npt.NDArray[np.float64]:
    """The values; NaN, which is not drawn, for those that are not finite or overflow an axis."""
    array = np.array([*values], dtype=np.float64)
    return np.where(np.abs(array) < _LARGEST, array, np.nan)


@dataclass(frozen=True)
class Drawing:
    """A figure as a page shows it."""

    svg: str  # the element
    colors: dict[str, str]  # of the series by label; a series without a label is in no legend
    hover: dict[str, Any]  # x, y in the SVG's coordinates, text and series of each point; and `byX`


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
        numbers = {label: number for number, label in enumerate(panel.colors)}
        colors = {label: color for label, color in panel.colors.items() if label}
        if folder is not None:
            panel.axes.set_title(title, loc="left")
            if 1 < len(colors) <= _LEGEND_LABELS:
                handles = [Patch(color=color, label=name) for name, color in colors.items()]
                panel.axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
            name = re.sub(r"\W+", "-", title).strip("-").lower()
            canvas.savefig(folder / f"{name}.png", dpi=200)
    points = [
        [round(x, 1), round(height - y, 1), text, numbers[label]]
        for (x, y), (_, _, text, label) in zip(places.tolist(), panel.points, strict=False)
    ]

    def for_page(found: re.Match[str]) -> str:
        """A tag with ids of its own and the page's colours."""
        tag = re.sub(r'\bid="|href="#|url\(#', lambda match: f"{match[0]}{prefix}-", found[0])
        for color, variable in _GROUND_COLORS.items():
            tag = tag.replace(color, variable)
        return re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", tag)

    drop = r"<metadata>.*?</metadata>|<style.*?</style>|\n\s*"
    svg = re.sub(drop, " ", stream.getvalue(), flags=re.DOTALL)
    # Texts hold no `<` and no `>`: inside a tag, nothing comes from a user.
    svg = re.sub(r"<[^<>]*>", for_page, svg[svg.index("<svg") :])
    return Drawing(svg, colors, {"points": points, "byX": panel.by_x})
