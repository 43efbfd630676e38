"""The shape of a graph, and of the space in which a model places its nodes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PROJECTED_NODES = 1500
_BINS_PER_DECADE = 12
_PCA_COLUMNS = 50
_PERPLEXITY = 30
_ITERATIONS = 500


@dataclass(frozen=True)
class Degrees:
    """How many in-neighbours nodes have.

    Attributes:
        degree: float64 `[num_bins]`, the middle of each bin of degrees, from 1.
        nodes_per_degree: float64 `[num_bins]`, nodes for each degree of the bin.
        num_isolated: Nodes without an in-neighbour.
        median, mean, largest: Of all nodes.
    """

    degree: Floats
    nodes_per_degree: Floats
    num_isolated: int
    median: float
    mean: float
    largest: int


@dataclass(frozen=True)
class Projection:
    """Some labelled nodes in the plane, neighbours in the model's last hidden layer side by side.

    Attributes:
        nodes: int64 `[n]`.
        places: float64 `[n, 2]`.
        splits: `[n]`, the split of each node.
        source: What was projected, in words.
        num_labelled: Labelled nodes of all splits, of which these were drawn.
    """

    nodes: Ints
    places: Floats
    splits: Sequence[str]
    source: str
    num_labelled: int


@dataclass(frozen=True)
class Points:
    """Nodes with a true and a predicted value.

    Attributes:
        nodes: The nodes' ids as texts.
        true, predicted: float64 `[n]`.
    """

    nodes: Sequence[str]
    true: Floats
    predicted: Floats


def degrees_of(indptr: Ints) -> Degrees:
    """The in-degrees behind a CSC graph's offsets `[num_nodes + 1]`, in bins that grow as they do.

    Low degrees have a bin each; so both ends of a power law can be seen.
    """
    degree = np.diff(indptr)
    largest = int(degree.max(initial=0))
    counts = np.bincount(degree)
    steps = np.geomspace(1, largest + 1, 2 + int(_BINS_PER_DECADE * np.log10(largest + 1)))
    edges = np.unique(steps.round().astype(np.int64))
    totals = np.add.reduceat(counts, edges[:-1]) if largest else np.zeros(0, np.int64)
    widths = np.diff(edges)[: len(totals)]
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1.0))[: len(totals)]
    is_used = totals > 0
    return Degrees(
        degree=middles[is_used],
        nodes_per_degree=(totals / widths)[is_used],
        num_isolated=int(counts[0]),
        median=float(np.median(degree)),
        mean=float(degree.mean()),
        largest=largest,
    )


def sampled_nodes(nodes: Ints) -> Ints:
    """At most `PROJECTED_NODES` of the nodes, the same ones at every call, ascending."""
    if len(nodes) <= PROJECTED_NODES:
        return nodes
    chosen = np.random.default_rng(0).choice(nodes, PROJECTED_NODES, replace=False)
    return np.sort(chosen)


def project(rows: npt.NDArray[Any]) -> Floats | None:
    """Place rows `[n, width]` in the plane, neighbours beside each other: PCA, then t-SNE.

    t-SNE: van der Maaten & Hinton, 2008. The same rows give the same places.

    Returns:
        float64 `[n, 2]`; None where the rows are too few, all the same, or not finite.
    """
    if len(rows) < 4 or not np.isfinite(rows).all():
        return None
    # a second to import: where it is used
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    rows = rows.astype(np.float64)
    rows -= rows.mean(axis=0)
    scale = rows.std()
    if scale == 0:
        return None
    rows /= scale
    num_columns = min(_PCA_COLUMNS, *rows.shape)
    narrow = PCA(num_columns, random_state=0).fit_transform(rows)
    if num_columns < 2:
        return np.column_stack([narrow[:, 0], np.zeros(len(narrow))])
    perplexity = min(_PERPLEXITY, (len(rows) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of equal rows, which share a place
        placed = tsne.fit_transform(narrow)
    return placed.astype(np.float64) if np.isfinite(placed).all() else None


def projection_of(
    splits: Mapping[str, Ints],
    labelled: Ints,
    outputs: npt.NDArray[Any],
    rows: npt.NDArray[Any] | None,
) -> Projection | None:
    """Place some of the labelled nodes in the plane, see `project`.

    Args:
        splits: Nodes of train, val and test.
        labelled: Those of them that have a label.
        outputs: The model's outputs of all nodes, `[num_nodes, num_outputs]`.
        rows: What enters its last layer, `[num_nodes, width]`; None: the outputs are placed.
    """
    nodes = sampled_nodes(labelled)
    places = project((outputs if rows is None else rows)[nodes])
    if places is None:
        return None
    return Projection(
        nodes=nodes,
        places=places,
        splits=_splits_of(nodes, splits),
        source="the outputs" if rows is None else "the rows that enter the last layer",
        num_labelled=len(labelled),
    )


def _splits_of(nodes: Ints, splits: Mapping[str, Ints]) -> list[str]:
    names = np.full(len(nodes), "", dtype="U5")
    for name, members in splits.items():
        names[np.isin(nodes, members)] = name
    return names.tolist()
