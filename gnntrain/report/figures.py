"""The figures of a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import EngFormatter, PercentFormatter

from gnntrain.data.graph import Graph
from gnntrain.report.drawing import ACCENT, QUIET, SPLITS, Panel, class_color
from gnntrain.report.findings import Floats, Ints, Projection, SplitScores, sampled
from gnntrain.report.runs import ReportedRun
from gnntrain.report.tables import PHASES, phase_seconds
from gnntrain.reporting.text import (
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    shown_metric,
)
from gnntrain.reporting.trials import Group

_LABEL_LENGTH = 48
_BINS_PER_DECADE = 12
_BINS = 40
_DECADES = 50
_GUIDE: Any = {"color": QUIET, "lw": 1, "ls": (0, (2, 3))}


def loss(panel: Panel, run: ReportedRun) -> None:
    """The mean training loss of each epoch."""
    losses = {record.epoch: record.train_loss for record in run.records}
    _curve(panel, losses, "train", SPLITS["train"], format_loss, run)
    _loss_axis(panel, [*losses.values()])


def _loss_axis(panel: Panel, losses: Sequence[float]) -> None:
    panel.epochs("loss")
    known = [value for value in losses if math.isfinite(value)]
    if known and min(known) > 0 and max(known) > _DECADES * min(known):
        panel.logarithmic("y")
    else:
        panel.from_zero(losses)


def metric(panel: Panel, run: ReportedRun) -> None:
    """The deciding metric on each split, and the best epoch."""
    for split, color in SPLITS.items():
        if run.best.get(split):
            _curve(panel, _metrics(run, split), split, color, format_metric, run)
    panel.epochs(shown_metric(run.metric or "metric"))


def _metrics(run: ReportedRun, split: str) -> dict[int, float]:
    """The deciding metric of the evaluated epochs."""
    values = {record.epoch: record.metric(split, run.metric or "") for record in run.records}
    return {epoch: value for epoch, value in values.items() if value is not None}


def _curve(
    panel: Panel,
    values: Mapping[int, float],
    label: str,
    color: str,
    shown: Callable[[float], str],
    run: ReportedRun | None = None,
) -> None:
    """Values by epoch; the mouse shows those of all curves in an epoch. A line marks the best epoch
    of a run."""
    panel.by_x = True
    texts = [f"epoch {epoch}: {label} {shown(value)}" for epoch, value in values.items()]
    panel.curve(values, values.values(), texts, label, color=color)
    if run is not None and run.result.best_epoch is not None and len(run.records) > 1:
        panel.axes.axvline(run.result.best_epoch, **_GUIDE)


def throughput(panel: Panel, run: ReportedRun) -> None:
    """Edges a second, or seeds for a model without neighbours."""
    name = "edges/s" if any(record.edges_per_s for record in run.records) else "seeds/s"
    field = name.replace("/", "_per_")
    values = {record.epoch: getattr(record, field) for record in run.records}
    _curve(panel, values, name, ACCENT, format_rate)
    panel.epochs(name)
    panel.from_zero(values.values())
    panel.axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def memory(panel: Panel, run: ReportedRun) -> None:
    """Resident memory of all ranks, and the peak of a GPU."""
    ranks = {record.epoch: record.memory_bytes / 2**30 for record in run.records}
    gpu = {record.epoch: (record.gpu_memory_bytes or 0) / 2**30 for record in run.records}
    _curve(panel, ranks, "all ranks", ACCENT, "{:.3g} GiB".format)
    if any(gpu.values()):
        _curve(panel, gpu, "GPU, peak of a rank", SPLITS["test"], "{:.3g} GiB".format)
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
        panel.dots(degree, nodes, texts, name, color=class_color(number) if name else ACCENT)
    panel.axes.set(xlabel="in-degree", ylabel="nodes")
    panel.logarithmic("x", "y")


def degree_bins(degrees: Ints) -> tuple[Floats, Floats]:
    """Bins of growing width for degrees from 1; each low degree has a bin of its own.

    Returns:
        The middle of each bin that holds a node, and its nodes for each degree of the bin, `[n]`.
    """
    counts = np.bincount(degrees)
    largest = len(counts) - 1
    if largest == 0:
        return np.zeros(0), np.zeros(0)
    steps = np.geomspace(1, largest + 1, 2 + int(_BINS_PER_DECADE * np.log10(largest + 1)))
    edges = np.unique(steps.round().astype(np.int64))
    totals = np.add.reduceat(counts, edges[:-1])
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
    return middles[totals > 0], (totals / np.diff(edges))[totals > 0]


def roc(panel: Panel, scores: Mapping[str, SplitScores]) -> None:
    """The receiver operating characteristic on each split that has one."""
    panel.axes.axline((0, 0), slope=1, **_GUIDE)
    for split, scored in scores.items():
        if scored.roc is not None:
            texts = [f"{split}: false {x:.3f}, true {y:.3f}" for x, y in scored.roc.T]
            false, true = scored.roc
            panel.curve(false, true, texts, split, color=SPLITS[split])
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
        panel.dots(true, predicted, texts, split, color=SPLITS[split], alpha=0.6)
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
        bars = panel.axes.stairs(shares, edges, fill=True, color=SPLITS[split], alpha=0.6)
        pairs = zip(middles, shares, strict=True)
        texts = [f"{split}, error {x:.4g}: {share:.1%} of the nodes" for x, share in pairs]
        panel.add(bars, middles, shares, texts, split)
    panel.axes.set(xlabel=f"predicted − true {name}", ylabel="share of the nodes")
    panel.axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def group_curves(panel: Panel, groups: Sequence[Group[ReportedRun]], split: str) -> None:
    """The deciding metric of many runs on a split, or their loss on `train`; a colour a group."""
    losses: list[float] = []
    for number, group in enumerate(groups):
        for run in group.runs:
            values = _metrics(run, split)
            if split == "train":
                values = {record.epoch: record.train_loss for record in run.records}
                losses += values.values()
            texts = [f"{run.name}\nepoch {epoch}: {value:.4f}" for epoch, value in values.items()]
            look = {"color": class_color(number), "alpha": 0.8}
            panel.curve(values, values.values(), texts, group.varied[0], **look)
    if split == "train":
        _loss_axis(panel, losses)
    else:
        panel.epochs(f"{split} {_metric_names(groups)}")


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
