"""The figures of a report: drawn by matplotlib as SVG into a page, and as files."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter, PercentFormatter

from gnntrain.data.graph import Graph
from gnntrain.report.findings import Floats, Ints, Projection, SplitScores, sampled
from gnntrain.report.runs import ReportedRun
from gnntrain.report.tables import PHASES, class_color, phase_seconds
from gnntrain.reporting.text import (
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    shown_metric,
)
from gnntrain.reporting.trials import Group

_SPLITS = {"train": "#8d99ae", "val": "#3a86ff", "test": "#f4845f"}
_ACCENT = "#3a86ff"
# The page gives these three another value on dark ground.
_GROUND_COLORS = {"#1c2333": "var(--ink)", "#5d6880": "var(--quiet)", "#e3e7f0": "var(--line)"}
_INK, _QUIET, _LINE = _GROUND_COLORS
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": _LINE,
    "axes.grid": True,
    "axes.labelcolor": _QUIET,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 12,
    "grid.color": _LINE,
    "legend.fontsize": "small",
    "legend.frameon": False,
    "legend.handlelength": 1,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "gnntrain",  # the same figure has the same ids
    "text.color": _INK,
    "text.parse_math": False,  # a `$` in a name begins no formula
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
}
_GUIDE: Any = {"color": _QUIET, "lw": 1, "ls": (0, (2, 3))}
_MARKED_POINTS, _HOVER_POINTS, _LEGEND_LABELS, _LABEL_LENGTH = 60, 1000, 12, 48
_BINS, _DEGREE_BINS = 40, 60
_LARGEST = 1e300

Numbers = Iterable[Any]
Texts = Iterable[str]
Format = Callable[[float], str]


@dataclass
class Panel:
    """Axes, and the text that each point shows under the mouse.

    A series has a label; the mouse over one of its points dims the others.
    """

    axes: Axes
    colors: dict[str, str] = field(default_factory=dict)  # of the series by label, for a legend
    # x and y, in data coordinates, text and label of the series
    points: list[tuple[float, float, str, str]] = field(default_factory=list)
    by_x: bool = False  # the texts of all points at one x are shown together

    def add(self, artist: Any, x: Numbers, y: Numbers, texts: Texts, label: str = "") -> None:
        """Make an artist part of a series, and its points answer the mouse."""
        is_line = isinstance(artist, Line2D)  # of a collection the first colour
        color: Any = artist.get_color() if is_line else np.ravel(artist.get_facecolor())[:4]
        self.colors.setdefault(label, to_hex(color))
        artist.set_gid(f"series-{[*self.colors].index(label)}-{len(self.points)}")
        points = [(float(a), float(b), text, label) for a, b, text in zip(x, y, texts, strict=True)]
        step = 1 + len(points) // _HOVER_POINTS
        self.points += [one for one in points[::step] if all(map(math.isfinite, one[:2]))]

    def curve(self, x: Numbers, y: Numbers, texts: Texts, label: str = "", **style: Any) -> None:
        """Draw a line with a gap where a value is not finite; points are marked if few."""
        xs, ys = _finite(x), _finite(y)
        look = {"lw": 1.8, "marker": "o" if len(ys) <= _MARKED_POINTS else "", "markersize": 3.5}
        (line,) = self.axes.plot(xs, ys, **(look | style))
        self.add(line, xs, ys, texts, label)

    def dots(self, x: Numbers, y: Numbers, texts: Texts, label: str = "", **style: Any) -> None:
        """Draw points."""
        look = {"lw": 0, "marker": "o", "markersize": 5.5, "markeredgewidth": 0, "alpha": 0.85}
        self.curve(x, y, texts, label, **(look | style))

    def by_epoch(self, values: Mapping[int, float], label: str, color: str, shown: Format) -> None:
        """Draw values by epoch; the mouse shows those of all curves in an epoch."""
        self.by_x = True
        texts = [f"epoch {epoch}: {label} {shown(value)}" for epoch, value in values.items()]
        self.curve(values, values.values(), texts, label, color=color)

    def epochs(self, label: str, best: int | None = None) -> None:
        """Name the axes of a figure over epochs; a line marks the best epoch."""
        self.axes.set(xlabel="epoch", ylabel=label)
        ticks = MaxNLocator(steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
        self.axes.xaxis.set_major_locator(ticks)
        if best is not None:
            self.axes.axvline(best, **_GUIDE)

    def from_zero(self, values: Numbers) -> None:
        """Let the y axis begin at zero, for values that are not negative."""
        self.axes.set_ylim(0, 1.08 * np.nanmax([*_finite(values), 0]) or 1)


def _finite(values: Numbers) -> npt.NDArray[np.float64]:
    """The values; NaN, which is not drawn, for those that are not finite or overflow an axis."""
    array = np.array([*values], dtype=np.float64)
    return np.where(np.abs(array) < _LARGEST, array, np.nan)


@dataclass(frozen=True)
class Drawing:
    """A figure as a page shows it."""

    svg: str  # the element
    colors: dict[str, str]  # of the series by label; a series without a label is in no legend
    hover: dict[str, Any]  # x, y in the SVG's coordinates, text and series of each point; and `byX`


Figure = Callable[[Panel], None]  # draws a figure; it chooses no size and no title


def draw(
    figure: Figure,
    prefix: str,
    width: int = 540,
    height: int = 300,
    *,
    title: str = "",
    folder: Path | None = None,
) -> Drawing:
    """Draw a figure as an SVG element of so many CSS pixels, whose ids begin with `prefix`; and
    into a folder, if there is one, as a PNG file that is named by the title."""
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


def loss(panel: Panel, run: ReportedRun) -> None:
    """The mean training loss of each epoch."""
    losses = {record.epoch: record.train_loss for record in run.records}
    panel.by_epoch(losses, "train", _SPLITS["train"], format_loss)
    panel.epochs("loss", run.result.best_epoch)
    panel.from_zero(losses.values())


def metric(panel: Panel, run: ReportedRun) -> None:
    """The deciding metric on each split, and the best epoch."""
    for split, color in _SPLITS.items():
        if run.best.get(split):
            panel.by_epoch(run.course(split), split, color, format_metric)
    panel.epochs(shown_metric(run.metric or "metric"), run.result.best_epoch)


def throughput(panel: Panel, run: ReportedRun) -> None:
    """Edges a second, or seeds for a model without neighbours."""
    name = "edges/s" if any(record.edges_per_s for record in run.records) else "seeds/s"
    values = {one.epoch: getattr(one, name.replace("/", "_per_")) for one in run.records}
    panel.by_epoch(values, name, _ACCENT, format_rate)
    panel.epochs(name)
    panel.from_zero(values.values())
    panel.axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def memory(panel: Panel, run: ReportedRun) -> None:
    """Resident memory of all ranks, and the peak of a GPU."""
    ranks = {record.epoch: record.memory_bytes / 2**30 for record in run.records}
    gpu = {record.epoch: (record.gpu_memory_bytes or 0) / 2**30 for record in run.records}
    panel.by_epoch(ranks, "all ranks", _ACCENT, "{:.3g} GiB".format)
    if any(gpu.values()):
        panel.by_epoch(gpu, "GPU, peak of a rank", _SPLITS["test"], "{:.3g} GiB".format)
    panel.epochs("GiB")
    panel.from_zero([*ranks.values(), *gpu.values()])


def time(panel: Panel, run: ReportedRun) -> None:
    """Seconds of each epoch, stacked by phase."""
    panel.by_x = True
    seconds = phase_seconds(run.records)
    seconds = seconds.loc[:, seconds.any()]
    epochs, heights = seconds.index.tolist(), seconds.to_numpy().T
    tops = heights.cumsum(axis=0)
    edges = [epoch + end for epoch in epochs for end in (-0.5, 0.5)]
    colors = [PHASES[name][1] for name in seconds]
    areas = panel.axes.stackplot(edges, heights.repeat(2, axis=1), colors=colors)
    for area, name, height, top in zip(areas, seconds, heights, tops, strict=True):
        label = PHASES[name][0]
        panel.add(area, epochs, top, [f"{label} {format_seconds(one)}" for one in height], label)
    # The first epoch compiles: it would make all others invisible.
    totals = np.sort(tops[-1])
    is_visible = len(totals) < 2 or totals[-1] <= 3 * totals[-2]
    panel.from_zero(totals if is_visible else totals[:-1])
    panel.epochs("seconds")


def degrees(panel: Panel, graph: Graph) -> None:
    """The number of nodes by in-degree, both on logarithmic axes; a series an edge type."""
    for number, (edge_type, edges) in enumerate(graph.edges.items()):
        degree, nodes = degree_bins(np.diff(edges.indptr))
        name = "/".join(edge_type) if graph.is_hetero else ""
        pairs = zip(degree, nodes, strict=True)
        texts = [f"{name}\ndegree {x:.4g}: {y:.4g} nodes".strip() for x, y in pairs]
        panel.dots(degree, nodes, texts, name, color=class_color(number) if name else _ACCENT)
    panel.axes.set(xlabel="in-degree", ylabel="nodes", xscale="log", yscale="log")
    for axis in (panel.axes.xaxis, panel.axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def degree_bins(degrees: Ints) -> tuple[Floats, Floats]:
    """Bins of growing width for degrees from 1; each low degree has a bin of its own.

    Returns:
        The middle of each bin that holds a node, and its nodes for each degree of the bin, `[n]`.
    """
    edges = np.unique(np.geomspace(1, max(2, degrees.max() + 1), _DEGREE_BINS).round())
    totals = np.histogram(degrees, edges)[0]
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1))
    return middles[totals > 0], (totals / np.diff(edges))[totals > 0]


def roc(panel: Panel, scores: Mapping[str, SplitScores]) -> None:
    """The receiver operating characteristic on each split that has one."""
    panel.axes.axline((0, 0), slope=1, **_GUIDE)
    for split, scored in scores.items():
        if scored.roc is not None:
            texts = [f"{split}: false {x:.3f}, true {y:.3f}" for x, y in scored.roc.T]
            false, true = scored.roc
            panel.curve(false, true, texts, split, color=_SPLITS[split])
    panel.axes.set(xlabel="false positive rate", ylabel="true positive rate")
    panel.axes.set(xlim=(0, 1), ylim=(0, 1.01))


def plane(panel: Panel, names: Sequence[str], found: Projection) -> None:
    """Nodes in the plane: a colour a class, and a ring where the prediction is wrong; or coloured
    by a target, the first name."""
    if found.labels.dtype.kind == "f":
        x, y = found.places.T
        dots = panel.axes.scatter(x, y, c=found.labels, s=20, alpha=0.85, linewidths=0)
        pairs = zip(found.texts, found.labels, strict=True)
        panel.add(dots, x, y, [f"{text}\n{names[0]} {value:.6g}" for text, value in pairs])
        bar = panel.axes.figure.colorbar(dots, ax=panel.axes, label=names[0], aspect=30)
        bar.outline.set_visible(False)
    else:
        predicted = found.labels if found.predicted is None else found.predicted
        for number in np.unique(found.labels).tolist():
            for is_right in (True, False):
                chosen = (found.labels == number) & ((predicted == number) == is_right)
                nodes = chosen.nonzero()[0]
                texts = [f"{found.texts[i]}\nclass {names[number]}" for i in nodes]
                if found.predicted is not None:
                    pairs = zip(texts, predicted[nodes], strict=True)
                    texts = [f"{text}\npredicted {names[other]}" for text, other in pairs]
                x, y = found.places[nodes].T
                look: Any = {"color": class_color(number)}
                look |= {} if is_right else {"markerfacecolor": "none", "markeredgewidth": 1.1}
                panel.dots(x, y, texts, names[number], **look)
    panel.axes.set_axis_off()
    panel.axes.set_aspect("equal", adjustable="datalim")  # distances mean the same in x and y


def predictions(panel: Panel, name: str, points: Mapping[str, Any]) -> None:
    """Predicted over true values of a target, a colour a split, and the line where they are
    equal."""
    for split, frame in points.items():
        drawn = frame.iloc[sampled(np.arange(len(frame)))]
        rows = drawn.itertuples(index=False)
        texts = [f"{node}\ntrue {x:.6g}\npredicted {y:.6g}" for node, x, y in rows]
        true, predicted = drawn["true"], drawn["predicted"]
        panel.dots(true, predicted, texts, split, color=_SPLITS[split], alpha=0.6)
        panel.axes.axline((true.iloc[0], true.iloc[0]), slope=1, **_GUIDE)
    panel.axes.set(xlabel=f"true {name}", ylabel=f"predicted {name}")


def errors(panel: Panel, name: str, points: Mapping[str, Any]) -> None:
    """The share of a split's nodes in each bin of errors; the outermost hundredth of all counts in
    the bins at the ends."""
    by_split = {split: (f["predicted"] - f["true"]).to_numpy() for split, f in points.items()}
    low, high = np.quantile(np.concatenate([*by_split.values()]), [0.005, 0.995])
    edges = np.linspace(low, high, _BINS + 1) if low < high else np.array([low - 1, low + 1])
    middles = (edges[:-1] + edges[1:]) / 2
    for split, error in by_split.items():
        shares = np.histogram(error.clip(low, high), edges)[0] / len(error)
        bars = panel.axes.stairs(shares, edges, fill=True, color=_SPLITS[split], alpha=0.6)
        pairs = zip(middles, shares, strict=True)
        texts = [f"{split}, error {x:.4g}: {share:.1%} of the nodes" for x, share in pairs]
        panel.add(bars, middles, shares, texts, split)
    panel.axes.set(xlabel=f"predicted − true {name}", ylabel="share of the nodes")
    panel.axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def group_curves(panel: Panel, groups: Sequence[Group[ReportedRun]], split: str) -> None:
    """The deciding metric of many runs on a split, or their loss on `train`; a colour a group."""
    for number, group in enumerate(groups):
        for run in group.runs:
            if split == "train":
                values = {record.epoch: record.train_loss for record in run.records}
            else:
                values = run.course(split)
            texts = [f"{run.name}\nepoch {epoch}: {value:.4f}" for epoch, value in values.items()]
            look = {"color": class_color(number), "alpha": 0.8}
            panel.curve(values, values.values(), texts, group.varied[0], **look)
    panel.epochs("loss" if split == "train" else f"{split} {_metric_names(groups)}")


def group_spread(panel: Panel, groups: Sequence[Group[ReportedRun]], split: str) -> None:
    """The deciding metric of each run, and the mean and standard deviation of its group."""
    for number, group in enumerate(groups):
        color, label = class_color(number), group.varied[0]
        scores = {run.name: run.score(split) for run in group.runs}
        texts = [f"{name}: {format_metric(score)}" for name, score in scores.items()]
        places = [number] * len(scores)
        panel.dots(scores.values(), places, texts, label, color=color, alpha=0.4, markersize=6)
        spread = group.spread(split)
        if spread.mean is not None:
            text, look = f"mean {format_metric(spread.mean)}", {"marker": "D", "markersize": 8}
            panel.dots([spread.mean], [number], [text], label, color=color, **look)
            panel.axes.errorbar(spread.mean, number, xerr=spread.std, color=color, capsize=4)
    labels = [group.varied[0] for group in groups]
    labels = [t if len(t) <= _LABEL_LENGTH else f"{t[: _LABEL_LENGTH - 1]}…" for t in labels]
    panel.axes.set_yticks(range(len(groups)), labels, fontsize="small")
    panel.axes.set(xlabel=f"{split} {_metric_names(groups)}", ylim=(len(groups) - 0.5, -0.5))


def _metric_names(groups: Sequence[Group[ReportedRun]]) -> str:
    names = {shown_metric(run.metric) for group in groups for run in group.runs if run.metric}
    return " / ".join(sorted(names))
