"""Labelled nodes in the plane, by t-SNE."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnntrain.data.graph import SPLITS, Graph

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SHOWN_NODES = 1000
_PCA_COLUMNS = 50
_PERPLEXITY = 30
_ITERATIONS = 500


@dataclass(frozen=True)
class Projection:
    """Some labelled nodes in the plane: neighbours in the last hidden layer are side by side.

    Attributes:
        nodes: int64 `[n]`.
        places: float64 `[n, 2]`.
        splits: `[n]`, the split of each node.
        source: The rows that were projected, in words.
        num_labelled: Labelled nodes of all splits, of which these were drawn.
    """

    nodes: Ints
    places: Floats
    splits: Sequence[str]
    source: str
    num_labelled: int

    @classmethod
    def of(
        cls,
        graph: Graph,
        labelled: Ints,
        outputs: npt.NDArray[Any],
        rows: npt.NDArray[Any] | None,
    ) -> Projection | None:
        """Place some of the labelled nodes in the plane, see `project`.

        Args:
            graph: The graph.
            labelled: Its nodes with a label.
            outputs: The model's outputs of all nodes, `[num_nodes, num_outputs]`.
            rows: The input of its last layer, `[num_nodes, width]`; None: the outputs are placed.
        """
        nodes = sampled_nodes(labelled)
        places = project((outputs if rows is None else rows)[nodes])
        if places is None:
            return None
        splits = np.full(len(nodes), "", dtype="U5")
        for name in SPLITS:
            splits[np.isin(nodes, graph.split(name))] = name
        source = "outputs" if rows is None else "input of the last layer"
        return cls(nodes, places, splits.tolist(), source, len(labelled))

    def text(self, i: int) -> str:
        """Node and split of the `i`-th place."""
        return f"node {self.nodes[i]} ({self.splits[i]})"


def sampled_nodes(nodes: Ints) -> Ints:
    """At most `SHOWN_NODES` of the nodes, the same ones in each call, ascending."""
    if len(nodes) <= SHOWN_NODES:
        return nodes
    return np.sort(np.random.default_rng(0).choice(nodes, SHOWN_NODES, replace=False))


def project(rows: npt.NDArray[Any]) -> Floats | None:
    """Place rows `[n, width]` in the plane by PCA, then t-SNE (van der Maaten & Hinton, 2008).

    The same rows give the same places.

    Returns:
        float64 `[n, 2]`; None where the rows are too few, all the same, or not finite.
    """
    if len(rows) < 4 or not np.isfinite(rows).all():
        return None
    # a second to import: where it is used
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    rows = rows.astype(np.float64)
    rows -= rows.mean(axis=0)
    scale = rows.std()
    if scale == 0:
        return None
    rows /= scale
    num_columns = min(_PCA_COLUMNS, *rows.shape)
    # Several threads wait for each other more than they compute with so few points.
    with threadpool_limits(1):
        narrow = PCA(num_columns, random_state=0).fit_transform(rows)
        if num_columns < 2:
            return np.column_stack([narrow[:, 0], np.zeros(len(narrow))])
        placed = _tsne(narrow)
    return placed if np.isfinite(placed).all() else None


def _tsne(rows: Floats) -> Floats:
    """Places of rows `[n, width]` of PCA, with `width` at least 2."""
    from sklearn.manifold import TSNE

    perplexity = min(_PERPLEXITY, (len(rows) - 1) / 3)
    begin = 1e-4 * rows[:, :2] / rows[:, 0].std()  # as init="pca", which computes PCA again
    tsne = TSNE(perplexity=perplexity, init=begin, random_state=0, max_iter=_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of equal rows, which share a place
        return np.asarray(tsne.fit_transform(rows), np.float64)
