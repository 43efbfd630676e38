"""The figures of a report; `drawing` makes SVG and PNG of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from matplotlib.ticker import EngFormatter, PercentFormatter

from gnntrain.report.classification import ClassFindings, SplitScores
from gnntrain.report.comparison import Group
from gnntrain.report.drawing import ACCENT, QUIET, SPLITS, Figure, Panel, class_color
from gnntrain.report.graph_facts import Degrees
from gnntrain.report.projection import Floats, Projection
from gnntrain.report.regression import TargetFindings, ValueFindings
from gnntrain.report.runs import ReportedRun
from gnntrain.report.timing import (
    PHASES,
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
from gnntrain.training.records import EpochRecord

_WIDE = 1110
_MANY_EPOCHS = 60


def loss(run: ReportedRun) -> Figure:
    """The mean training loss of each epoch."""

    def draw(panel: Panel) -> None:
        losses = [record.train_loss for record in run.records]
        _curve(panel, run.records, losses, "train", SPLITS["train"], format_loss)
        _best_line(panel, run)
        _loss_axis(panel, losses)

    return Figure("Loss", draw)


def _loss_axis(panel: Panel, losses: Sequence[float]) -> None:
    panel.epochs("loss")
    if spans_decades(losses):
        panel.logarithmic("y")
    else:
        panel.from_zero(losses)


def metric(run: ReportedRun) -> Figure:
    """The deciding metric on each split, and the best epoch."""
    name = shown_metric(run.metric or "metric")

    def draw(panel: Panel) -> None:
        panel.by_x = True
        for split, color in SPLITS.items():
            epochs, values = metric_course(run, split)
            panel.begin_series(split if epochs else "", color)
            texts = [
                f"epoch {epoch}: {split} {format_metric(value)}"
                for epoch, value in zip(epochs, values, strict=True)
            ]
            panel.curve(epochs, values, texts, color)
        _best_line(panel, run)
        panel.epochs(name)

    return Figure(name[:1].upper() + name[1:], draw)


def _best_line(panel: Panel, run: ReportedRun) -> None:
    if run.result.best_epoch is not None and len(run.records) > 1:
        panel.axes.axvline(run.result.best_epoch, color=SPLITS["val"], lw=1, ls=":")


def _curve(
    panel: Panel,
    records: Sequence[EpochRecord],
    values: Sequence[float],
    label: str,
    color: str,
    shown: Callable[[float | None], str],
) -> None:
    """A curve over epochs whose points tell epoch and value."""
    panel.by_x = True
    panel.begin_series(label, color)
    epochs = [record.epoch for record in records]
    texts = [
        f"epoch {epoch}: {label} {shown(value)}"
        for epoch, value in zip(epochs, values, strict=True)
    ]
    panel.curve(epochs, values, texts, color)


def throughput(run: ReportedRun) -> Figure:
    """Edges a second, or seeds for a model without neighbours."""

    def draw(panel: Panel) -> None:
        edges = [record.edges_per_s for record in run.records]
        seeds = [record.seeds_per_s for record in run.records]
        name, values = ("edges/s", edges) if any(edges) else ("seeds/s", seeds)
        _curve(panel, run.records, values, name, ACCENT, format_rate)
        panel.epochs(name)
        panel.from_zero(values)
        panel.axes.yaxis.set_major_formatter(EngFormatter(sep=""))

    return Figure("Throughput", draw)


def memory(run: ReportedRun) -> Figure:
    """Resident memory of all ranks, and the peak of a GPU."""

    def draw(panel: Panel) -> None:
        ranks = [record.memory_bytes / 2**30 for record in run.records]
        gpu = [(record.gpu_memory_bytes or 0) / 2**30 for record in run.records]
        _curve(panel, run.records, ranks, "all ranks", ACCENT, _gib)
        if any(gpu):
            _curve(panel, run.records, gpu, "GPU, peak of a rank", SPLITS["test"], _gib)
        panel.epochs("GiB")
        panel.from_zero([*ranks, *gpu])

    return Figure("Memory", draw)


def _gib(number: float | None) -> str:
    return f"{number:.3g} GiB"


def time(run: ReportedRun) -> Figure:
    """Seconds of each epoch, stacked by phase."""

    def draw(panel: Panel) -> None:
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
        if len(totals) > 1 and totals[-1] > 3 * totals[-2]:
            panel.axes.set_ylim(0, 1.15 * totals[-2])
        panel.epochs("seconds")

    return Figure("Time of each epoch", draw)


def _with_gaps(heights: Floats) -> Floats:
    """The heights with NaN between them: one patch then draws all bars."""
    gaps = np.full_like(heights, np.nan)
    return np.stack([heights, gaps], axis=1).ravel()[:-1]


def degrees(found: Degrees) -> Figure:
    """The number of nodes by in-degree, both on logarithmic axes."""

    def draw(panel: Panel) -> None:
        pairs = zip(found.degree, found.nodes_per_degree, strict=True)
        texts = [f"degree {degree:.4g}: {nodes:.4g} nodes" for degree, nodes in pairs]
        panel.dots(found.degree, found.nodes_per_degree, texts, ACCENT)
        panel.axes.set(xlabel="in-degree", ylabel="nodes")
        panel.logarithmic("x", "y")

    return Figure("Degree distribution", draw)


def roc(scores: Mapping[str, SplitScores]) -> Figure:
    """The receiver operating characteristic on each split that has one."""

    def draw(panel: Panel) -> None:
        panel.axes.axline((0, 0), slope=1, color=QUIET, lw=1, ls=":")
        for split, scored in scores.items():
            if scored.roc is not None:
                panel.begin_series(split, SPLITS[split])
                texts = [f"{split}: false {x:.3f}, true {y:.3f}" for x, y in scored.roc.T]
                false_rate, true_rate = scored.roc.tolist()
                panel.curve(false_rate, true_rate, texts, SPLITS[split])
        panel.axes.set(xlabel="false positive rate", ylabel="true positive rate")
        panel.axes.set(xlim=(0, 1), ylim=(0, 1.01))

    return Figure("ROC curve", draw, width=_WIDE)


def classes_in_the_plane(found: ClassFindings, projection: Projection) -> Figure:
    """Nodes in the plane, a colour a class; a node with a wrong prediction is a ring."""

    def text(i: int) -> str:
        told = f"{projection.text(i)}\nclass {found.names[found.classes[i]]}"
        return told + (
            "" if found.predicted is None else f"\npredicted {found.names[found.predicted[i]]}"
        )

    def draw(panel: Panel) -> None:
        predicted = found.classes if found.predicted is None else found.predicted
        for number in np.unique(found.classes).tolist():
            color = class_color(number)
            panel.begin_series(found.names[number], color)
            for is_right in (True, False):
                kind = (found.classes == number) & ((predicted == number) == is_right)
                nodes = kind.nonzero()[0]
                ring = {} if is_right else {"markerfacecolor": "none", "markeredgewidth": 1.1}
                x, y = projection.places[nodes].T
                panel.dots(x, y, map(text, nodes), color, **ring)
        _plane(panel)

    return Figure("Nodes as the model sees them", draw, width=_WIDE, height=600)


def values_in_the_plane(found: ValueFindings, projection: Projection, name: str) -> Figure:
    """Nodes in the plane, coloured by a quantity."""

    def draw(panel: Panel) -> None:
        x, y = projection.places.T
        dots = panel.axes.scatter(x, y, c=found.values, s=20, alpha=0.85, linewidths=0)
        numbered = enumerate(found.values)
        texts = [f"{projection.text(i)}\n{name} {value:.6g}" for i, value in numbered]
        panel.add(dots, x, y, texts)
        bar = panel.axes.figure.colorbar(dots, ax=panel.axes, label=name, aspect=30)
        bar.outline.set_visible(False)
        _plane(panel)

    return Figure("Nodes as the model sees them", draw, width=_WIDE, height=600)


def _plane(panel: Panel) -> None:
    panel.axes.set_axis_off()
    panel.axes.set_aspect("equal", adjustable="datalim")  # distances mean the same in x and y


def predictions(target: TargetFindings) -> Figure:
    """Predicted over true values, a colour a split, and the line where they are equal."""

    def draw(panel: Panel) -> None:
        for split, points in target.drawn.items():
            panel.begin_series(split, SPLITS[split])
            triples = zip(points.nodes, points.true, points.predicted, strict=True)
            texts = [f"{node}\ntrue {x:.6g}\npredicted {y:.6g}" for node, x, y in triples]
            panel.dots(points.true, points.predicted, texts, SPLITS[split], alpha=0.6)
        some = float(next(iter(target.drawn.values())).true[0])
        panel.axes.axline((some, some), slope=1, color=QUIET, lw=1, ls=":")
        panel.axes.set(xlabel=f"true {target.name}", ylabel=f"predicted {target.name}")

    return Figure(f"Predicted and true {target.name}", draw)


def errors(target: TargetFindings) -> Figure:
    """The share of a split's nodes in each bin of errors."""

    def draw(panel: Panel) -> None:
        for split, (edges, shares) in target.errors.items():
            panel.begin_series(split, SPLITS[split])
            bars = panel.axes.stairs(shares, edges, fill=True, color=SPLITS[split], alpha=0.6)
            middles = (edges[:-1] + edges[1:]) / 2
            pairs = zip(middles, shares, strict=True)
            texts = [f"{split}, error {x:.4g}: {share:.1%} of the nodes" for x, share in pairs]
            panel.add(bars, middles, shares, texts)
        panel.axes.set(xlabel=f"predicted − true {target.name}", ylabel="share of the nodes")
        panel.axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))

    return Figure(f"Errors of {target.name}", draw)


def losses_of(groups: Sequence[Group]) -> Figure:
    """The training loss of many runs, a colour a group."""

    def draw(panel: Panel) -> None:
        values = []
        for run, color in _colored(panel, groups):
            epochs = [record.epoch for record in run.records]
            losses = [record.train_loss for record in run.records]
            values += losses
            texts = [f"{run.name}\nepoch {e}: {v:.4f}" for e, v in zip(epochs, losses, strict=True)]
            panel.curve(epochs, losses, texts, color, alpha=0.8)
        _loss_axis(panel, values)

    return Figure("Training loss", draw)


def metrics_of(groups: Sequence[Group], split: str) -> Figure:
    """The deciding metric of many runs on a split, a colour a group."""

    def draw(panel: Panel) -> None:
        for run, color in _colored(panel, groups):
            epochs, values = metric_course(run, split)
            texts = [f"{run.name}\nepoch {e}: {v:.4f}" for e, v in zip(epochs, values, strict=True)]
            panel.curve(epochs, values, texts, color, alpha=0.8)
        panel.epochs(f"{split} {_metric_names(groups)}")

    return Figure({"val": "Validation", "test": "Test"}[split], draw)


def spread_of(groups: Sequence[Group], split: str) -> Figure:
    """The deciding metric of each run, and the mean and standard deviation of its group."""

    def draw(panel: Panel) -> None:
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
        panel.axes.set_yticks(range(len(groups)), [group.label for group in groups])
        panel.axes.set(xlabel=f"{split} {_metric_names(groups)}", ylim=(len(groups) - 0.5, -0.5))

    height = max(180, 70 + 26 * len(groups))
    return Figure(f"{split.capitalize()} metric by setting", draw, width=_WIDE, height=height)


def _colored(panel: Panel, groups: Sequence[Group]) -> Iterator[tuple[ReportedRun, str]]:
    """Each run as a series, with the colour of its group."""
    for number, group in enumerate(groups):
        for place, run in enumerate(group.runs):
            panel.begin_series(group.label if place == 0 else "", class_color(number))
            yield run, class_color(number)


def _metric_names(groups: Sequence[Group]) -> str:
    names = {shown_metric(run.metric) for group in groups for run in group.runs if run.metric}
    return " / ".join(sorted(names))
