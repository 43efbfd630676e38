"""The figures of a report; `drawing` makes SVG and PNG of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import EngFormatter, PercentFormatter

from gnntrain.data.graph import Graph
from gnntrain.report.classification import ClassFindings, SplitScores
from gnntrain.report.drawing import ACCENT, QUIET, SPLITS, Panel, class_color
from gnntrain.report.projection import Floats, Ints, Projection, sampled_nodes
from gnntrain.report.regression import TargetFindings, ValueFindings, histograms
from gnntrain.report.runs import ReportedRun
from gnntrain.report.timing import (
    PHASES,
    Course,
    loss_course,
    metric_course,
    phase_seconds,
    spans_decades,
)
from gnntrain.reporting.text import (
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    shown_metric,
)
from gnntrain.reporting.trials import Group

_MANY_EPOCHS = 60
_LABEL_LENGTH = 48
_BINS_PER_DECADE = 12
_GUIDE: Any = {"color": QUIET, "lw": 1, "ls": (0, (2, 3))}


def loss(panel: Panel, run: ReportedRun) -> None:
    """The mean training loss of each epoch."""
    course = loss_course(run)
    _curve(panel, course, "train", SPLITS["train"], format_loss)
    _best_line(panel, run)
    _loss_axis(panel, course[1])


def _loss_axis(panel: Panel, losses: Sequence[float]) -> None:
    panel.epochs("loss")
    if spans_decades(losses):
        panel.logarithmic("y")
    else:
        panel.from_zero(losses)


def metric(panel: Panel, run: ReportedRun) -> None:
    """The deciding metric on each split, and the best epoch."""
    for split, color in SPLITS.items():
        if run.best.get(split):
            _curve(panel, metric_course(run, split), split, color, format_metric)
    _best_line(panel, run)
    panel.epochs(shown_metric(run.metric or "metric"))


def _best_line(panel: Panel, run: ReportedRun) -> None:
    if run.result.best_epoch is not None and len(run.records) > 1:
        panel.axes.axvline(run.result.best_epoch, **_GUIDE)


def _epochs(run: ReportedRun) -> list[int]:
    return [record.epoch for record in run.records]


def _curve(
    panel: Panel, course: Course, label: str, color: str, shown: Callable[[float], str]
) -> None:
    """A curve over epochs; the mouse shows the values of all curves in an epoch."""
    panel.by_x = True
    panel.begin_series(label, color)
    texts = [f"epoch {e}: {label} {shown(value)}" for e, value in zip(*course, strict=True)]
    panel.curve(*course, texts, color)


def throughput(panel: Panel, run: ReportedRun) -> None:
    """Edges a second, or seeds for a model without neighbours."""
    edges = [record.edges_per_s for record in run.records]
    seeds = [record.seeds_per_s for record in run.records]
    name, values = ("edges/s", edges) if any(edges) else ("seeds/s", seeds)
    _curve(panel, (_epochs(run), values), name, ACCENT, format_rate)
    panel.epochs(name)
    panel.from_zero(values)
    panel.axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def memory(panel: Panel, run: ReportedRun) -> None:
    """Resident memory of all ranks, and the peak of a GPU."""
    ranks = [record.memory_bytes / 2**30 for record in run.records]
    gpu = [(record.gpu_memory_bytes or 0) / 2**30 for record in run.records]
    _curve(panel, (_epochs(run), ranks), "all ranks", ACCENT, _gib)
    if any(gpu):
        _curve(panel, (_epochs(run), gpu), "GPU, peak of a rank", SPLITS["test"], _gib)
    panel.epochs("GiB")
    panel.from_zero([*ranks, *gpu])


def _gib(number: float) -> str:
    return f"{number:.3g} GiB"


def time(panel: Panel, run: ReportedRun) -> None:
    """Seconds of each epoch, stacked by phase."""
    panel.by_x = True
    timed = [record for record in run.records if record.time]
    seconds = [phase_seconds(record) for record in timed]
    epochs = [record.epoch for record in timed]
    half = 0.44 if len(timed) <= _MANY_EPOCHS else 0.5
    edges = [epoch + end for epoch in epochs for end in (-half, half)]
    bottom = np.zeros(len(timed))
    for name, (label, color) in PHASES.items():
        heights = np.array([phases[name] for phases in seconds])
        if not heights.any():
            continue
        top = bottom + heights
        panel.begin_series(label, color)
        bars = panel.axes.stairs(
            _with_gaps(top), edges, baseline=_with_gaps(bottom), fill=True, color=color
        )
        texts = [f"{label} {format_seconds(height)}" for height in heights]
        panel.add(bars, epochs, top, texts)
        bottom = top
    # The first epoch compiles: it would make all others invisible.
    totals = np.sort(bottom)
    is_visible = len(totals) < 2 or totals[-1] <= 3 * totals[-2]
    panel.from_zero([*(totals if is_visible else totals[:-1])])
    panel.epochs("seconds")


def _with_gaps(heights: Floats) -> Floats:
    """The heights with NaN between them: one patch then draws all bars."""
    gaps = np.full_like(heights, np.nan)
    return np.stack([heights, gaps], axis=1).ravel()[:-1]


def degrees(panel: Panel, graph: Graph) -> None:
    """The number of nodes by in-degree, both on logarithmic axes; a series an edge type."""
    for number, (edge_type, edges) in enumerate(graph.edges.items()):
        degree, nodes = degree_bins(np.diff(edges.indptr))
        pairs = zip(degree, nodes, strict=True)
        texts = [f"degree {degree:.4g}: {nodes:.4g} nodes" for degree, nodes in pairs]
        color = ACCENT
        if graph.is_hetero:
            name, color = "/".join(edge_type), class_color(number)
            texts = [f"{name}\n{text}" for text in texts]
            panel.begin_series(name, color)
        panel.dots(degree, nodes, texts, color)
    panel.axes.set(xlabel="in-degree", ylabel="nodes")
    panel.logarithmic("x", "y")


def degree_bins(degrees: Ints) -> tuple[Floats, Floats]:
    """Bins of growing width for degrees from 1; each low degree has a bin of its own.

    Both ends of a power law are visible.

    Returns:
        The middle of each bin that holds a node, and its nodes for each degree of the bin, `[n]`.
    """
    counts = np.bincount(degrees)
    largest = len(counts) - 1
    steps = np.geomspace(1, largest + 1, 2 + int(_BINS_PER_DECADE * np.log10(largest + 1)))
    edges = np.unique(steps.round().astype(np.int64))
    if largest == 0:
        return np.zeros(0), np.zeros(0)
    totals = np.add.reduceat(counts, edges[:-1])
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
    return middles[totals > 0], (totals / np.diff(edges))[totals > 0]


def roc(panel: Panel, scores: Mapping[str, SplitScores]) -> None:
    """The receiver operating characteristic on each split that has one."""
    panel.axes.axline((0, 0), slope=1, **_GUIDE)
    for split, scored in scores.items():
        if scored.roc is not None:
            panel.begin_series(split, SPLITS[split])
            texts = [f"{split}: false {x:.3f}, true {y:.3f}" for x, y in scored.roc.T]
            false_rate, true_rate = scored.roc.tolist()
            panel.curve(false_rate, true_rate, texts, SPLITS[split])
    panel.axes.set(xlabel="false positive rate", ylabel="true positive rate")
    panel.axes.set(xlim=(0, 1), ylim=(0, 1.01))


def classes_in_the_plane(panel: Panel, found: ClassFindings, projection: Projection) -> None:
    """Nodes in the plane, a colour a class; a node with a wrong prediction is a ring."""
    names, is_told = found.names, found.predicted is not None
    predicted = found.predicted if found.predicted is not None else found.classes
    for number in np.unique(found.classes).tolist():
        panel.begin_series(names[number], class_color(number))
        for is_right in (True, False):
            chosen = (found.classes == number) & ((predicted == number) == is_right)
            nodes = chosen.nonzero()[0]
            texts = [
                f"{projection.text(i)}\nclass {names[number]}"
                + (f"\npredicted {names[predicted[i]]}" if is_told else "")
                for i in nodes
            ]
            ring = {} if is_right else {"markerfacecolor": "none", "markeredgewidth": 1.1}
            x, y = projection.places[nodes].T
            panel.dots(x, y, texts, class_color(number), **ring)
    _plane(panel)


def values_in_the_plane(panel: Panel, found: ValueFindings, projection: Projection) -> None:
    """Nodes in the plane, coloured by the first target."""
    x, y = projection.places.T
    name = found.targets[0].name
    dots = panel.axes.scatter(x, y, c=found.values, s=20, alpha=0.85, linewidths=0)
    numbered = enumerate(found.values)
    texts = [f"{projection.text(i)}\n{name} {value:.6g}" for i, value in numbered]
    panel.add(dots, x, y, texts)
    bar = panel.axes.figure.colorbar(dots, ax=panel.axes, label=name, aspect=30)
    bar.outline.set_visible(False)
    _plane(panel)


def _plane(panel: Panel) -> None:
    panel.axes.set_axis_off()
    panel.axes.set_aspect("equal", adjustable="datalim")  # distances mean the same in x and y


def predictions(panel: Panel, target: TargetFindings) -> None:
    """Predicted over true values, a colour a split, and the line where they are equal."""
    for split, points in target.points.items():
        drawn = points.take(sampled_nodes(np.arange(len(points.nodes))))
        panel.begin_series(split, SPLITS[split])
        texts = [f"{node}\ntrue {x:.6g}\npredicted {y:.6g}" for node, x, y in drawn.rows()]
        panel.dots(drawn.true, drawn.predicted, texts, SPLITS[split], alpha=0.6)
        panel.axes.axline((drawn.true[0], drawn.true[0]), slope=1, **_GUIDE)
    panel.axes.set(xlabel=f"true {target.name}", ylabel=f"predicted {target.name}")


def errors(panel: Panel, target: TargetFindings) -> None:
    """The share of a split's nodes in each bin of errors."""
    found = histograms({split: points.errors for split, points in target.points.items()})
    for split, (edges, shares) in found.items():
        panel.begin_series(split, SPLITS[split])
        bars = panel.axes.stairs(shares, edges, fill=True, color=SPLITS[split], alpha=0.6)
        middles = (edges[:-1] + edges[1:]) / 2
        pairs = zip(middles, shares, strict=True)
        texts = [f"{split}, error {x:.4g}: {share:.1%} of the nodes" for x, share in pairs]
        panel.add(bars, middles, shares, texts)
    panel.axes.set(xlabel=f"predicted − true {target.name}", ylabel="share of the nodes")
    panel.axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def group_losses(panel: Panel, groups: Sequence[Group[ReportedRun]]) -> None:
    """The training loss of many runs, a colour a group."""
    _curves_of(panel, groups, loss_course)
    runs = [run for group in groups for run in group.runs]
    _loss_axis(panel, [loss for run in runs for loss in loss_course(run)[1]])


def group_metrics(panel: Panel, groups: Sequence[Group[ReportedRun]], split: str) -> None:
    """The deciding metric of many runs on a split, a colour a group."""
    _curves_of(panel, groups, lambda run: metric_course(run, split))
    panel.epochs(f"{split} {_metric_names(groups)}")


def _curves_of(
    panel: Panel, groups: Sequence[Group[ReportedRun]], course: Callable[[ReportedRun], Course]
) -> None:
    for number, group in enumerate(groups):
        for place, run in enumerate(group.runs):
            panel.begin_series("" if place else group.varied[0], class_color(number))
            epochs, values = course(run)
            texts = [f"{run.name}\nepoch {e}: {v:.4f}" for e, v in zip(epochs, values, strict=True)]
            panel.curve(epochs, values, texts, class_color(number), alpha=0.8)


def group_spread(panel: Panel, groups: Sequence[Group[ReportedRun]], split: str) -> None:
    """The deciding metric of each run, and the mean and standard deviation of its group."""
    for number, group in enumerate(groups):
        color, scores = class_color(number), [run.score(split) for run in group.runs]
        panel.begin_series()
        texts = [f"{run.name}: {format_metric(run.score(split))}" for run in group.runs]
        panel.dots(scores, [number] * len(scores), texts, color, alpha=0.4, markersize=6)
        spread = group.spread(split)
        if spread.mean is not None:
            text = f"mean {format_metric(spread.mean)}"
            panel.dots([spread.mean], [number], [text], color, marker="D", markersize=8)
            panel.axes.errorbar(spread.mean, number, xerr=spread.std, color=color, capsize=4)
    labels = [_shortened(group.varied[0]) for group in groups]
    panel.axes.set_yticks(range(len(groups)), labels, fontsize="small")
    panel.axes.set(xlabel=f"{split} {_metric_names(groups)}", ylim=(len(groups) - 0.5, -0.5))


def _shortened(label: str) -> str:
    return label if len(label) <= _LABEL_LENGTH else f"{label[: _LABEL_LENGTH - 1]}…"


def _metric_names(groups: Sequence[Group[ReportedRun]]) -> str:
    names = {shown_metric(run.metric) for group in groups for run in group.runs if run.metric}
    return " / ".join(sorted(names))
