"""Predicting quantities of nodes: one number, or several, a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnntrain.data.graph import Graph
from gnntrain.data.targets import TargetScale
from gnntrain.devices import accelerator, float_type
from gnntrain.metrics import LabelKind, Metric, get_metric, outside_metrics
from gnntrain.tasks.base import Column, Columns, Labels, NodeTask, listed

# Computed for every split; the deciding metric comes before them.
_REPORTED = ("r2", "rmse", "mae")


class NodeRegression(NodeTask):
    """Predicts quantities of the nodes of a graph.

    The model learns standardised targets, of mean 0 and standard deviation 1 over the training
    nodes; metrics and predictions are in the targets' own units. A missing target (NaN) counts
    neither in the loss nor in a metric.

    Args:
        graph: Nodes, splits and targets.
        quantities: The targets to predict; None: those of `graph`. A trained model may predict for
            a graph without targets.
        scale: Mean and standard deviation of the targets a model was trained on; None: those of
            the training nodes of `graph`.
        loss: "mse", or "huber".
        huber_delta: Error, in standard deviations, from which Huber's loss is linear.

    Attributes:
        kind: The kind of labels, "continuous".
        num_outputs: One a target.
        metric: The deciding metric.
        scale: How standardised targets become quantities.

    Raises:
        UserError: No installed package has the metric.
    """

    kind: LabelKind = "continuous"

    def __init__(
        self,
        graph: Graph,
        quantities: Labels | None = None,
        scale: TargetScale | None = None,
        *,
        loss: Literal["mse", "huber"] = "mse",
        huber_delta: float = 1.0,
    ) -> None:
        quantities = quantities or graph
        super().__init__(graph, quantities.num_classes)
        self._names = quantities.class_names
        self._loss = loss
        self._huber_delta = huber_delta
        self.metric: Metric = get_metric(quantities.metric)
        self.scale = scale or graph.target_scale()
        self._scale_on: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @property
    def targets(self) -> Tensor:
        """float `[num_nodes, num_outputs]` in their own units, NaN where one is missing."""
        targets = torch.from_numpy(self._graph.labels)
        return targets.float() if accelerator() == "mps" else targets  # which has no float64

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Squared error or Huber's loss (Huber, 1964) on standardised targets: of a node the mean
        over the targets that it has, 0 where it has none. In float32 whatever the outputs are."""
        is_known = ~targets.isnan()
        mean, std = self._on(targets.device)
        wanted = ((targets.to(mean.dtype) - mean) / std).float().nan_to_num()
        if self._loss == "huber":
            delta = self._huber_delta
            losses = F.huber_loss(outputs.float(), wanted, reduction="none", delta=delta)
        else:
            losses = F.mse_loss(outputs.float(), wanted, reduction="none")
        num_known = is_known.sum(dim=1).clamp(min=1)
        return ((losses * is_known).sum(dim=1) / num_known).sum()

    def values(self, outputs: Tensor) -> Tensor:
        """Outputs as quantities in the user's units, `[n, num_outputs]`: float64, or the device's
        most precise type."""
        mean, std = self._on(outputs.device)
        return outputs.to(mean.dtype) * std + mean

    @cached_property
    def reported(self) -> Sequence[Metric]:
        """See `Task.reported`."""
        names = dict.fromkeys((self.metric.name, *_REPORTED, *outside_metrics(self.kind)))
        return [get_metric(name) for name in names]

    def metric_inputs(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See `Task.metric_inputs`: quantities, float64."""
        has_target = ~targets.isnan().all(dim=1)
        return self.values(outputs[has_target]), targets[has_target].double()

    def predictions(self) -> Mapping[str, Callable[[], Columns]]:
        """The quantities."""
        return {"value": self._values}

    def warnings(self) -> list[str]:
        """Targets that are constant or missing on the training nodes; targets for which R² is not
        defined on a split."""
        found, names = [], self.target_names

        def ranges(split: str) -> list[tuple[str, tuple[float, float] | None]]:
            return list(zip(names, self._graph.target_ranges(split), strict=True))

        if missing := [name for name, ends in ranges("train") if ends is None]:
            found.append(f"No training node has {listed(missing)}, which cannot be learnt.")
        is_constant = [(n, ends[0]) for n, ends in ranges("train") if ends and ends[0] == ends[1]]
        if constant := [f"{name} ({value:g})" for name, value in is_constant]:
            found.append(
                f"All training nodes have one value of {listed(constant)}: it cannot be learnt."
            )
        for split in ("val", "test"):
            undefined = [name for name, ends in ranges(split) if ends is None or ends[0] == ends[1]]
            if len(self._graph.split(split)) == 0 or not undefined:
                continue
            decides = split == "val" and self.metric.name == "r2" and len(undefined) == len(names)
            then = "; the last epoch counts as the best" if decides else ""
            found.append(
                f"r2 is not defined on {split} for {listed(undefined)}, which does not vary{then}."
            )
        return found

    @property
    def target_names(self) -> list[str]:
        """The targets' names; without names `value`, or `value_0`, `value_1`, …."""
        if self._names is not None:
            return [str(name) for name in self._names]
        return (
            ["value"] if self.num_outputs == 1 else [f"value_{i}" for i in range(self.num_outputs)]
        )

    def _values(self) -> Columns:
        names = self.target_names
        # A table's first column is the nodes' ids.
        titles = ["value_node" if name == "node" else name for name in names]
        column = Column("value", np.dtype(np.float64), lambda o: self.values(o).numpy(), titles)
        return Columns([column], {"target_names": np.array(names)})

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, `[num_outputs]`, in the device's most precise type, copied
        there once: a recorded step may not copy from the host."""
        if device not in self._scale_on:
            scale = torch.tensor([self.scale.mean, self.scale.std], dtype=float_type(device))
            mean, std = scale.to(device)
            self._scale_on[device] = mean, std
        return self._scale_on[device]
