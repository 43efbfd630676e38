"""Sums over an epoch's steps, which go on after an interruption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gnntrain.distributed.context import DistributedContext


@dataclass
class EpochTotals:
    """Sums over an epoch's steps, of one rank.

    Attributes:
        loss: Sum of the seeds' losses; stays on the device until it is printed.
        first_bad: Step (from 1) of the epoch whose loss was the first that is not finite, 0 before;
            on the device too.
        step: As `num_steps`, on the device.
        edges: Sampled edges of padded batches, whose sizes are in device memory.
        num_seeds: Seeds in the loss.
        num_edges: Sampled edges of the other batches.
        num_steps: Steps that are done.
        num_skipped: Steps whose gradient was not finite and was not used.
        lr: Learning rate of the last step.
        seconds: Since the epoch began, without the time of an interruption.
        times: Seconds by phase.
    """

    loss: Tensor
    first_bad: Tensor
    step: Tensor
    edges: Tensor
    num_seeds: int = 0
    num_edges: int = 0
    num_steps: int = 0
    num_skipped: int = 0
    lr: float = 0.0
    seconds: float = 0.0
    times: dict[str, float] = field(default_factory=dict)

    @classmethod
    def start(cls, device: torch.device) -> EpochTotals:
        """Zero totals."""
        first_bad, step, edges = torch.zeros(3, dtype=torch.int64, device=device).unbind()
        return cls(torch.zeros((), device=device), first_bad, step, edges)

    def count(self, loss_sum: Tensor) -> None:
        """Add the loss of the step, which is the sum over its seeds, without synchronisation."""
        is_bad = (self.first_bad == 0) & ~loss_sum.isfinite()
        self.first_bad += is_bad * self.step
        self.loss += loss_sum

    def lend(self, other: EpochTotals) -> None:
        """Copy the counters of `other` into this one's tensors and let `other` use them."""
        for name in ("loss", "first_bad", "step", "edges"):
            own, theirs = getattr(self, name), getattr(other, name)
            if own is not theirs:
                own.copy_(theirs)
                setattr(other, name, own)

    def total_edges(self) -> int:
        """Sampled edges; synchronises the device."""
        return self.num_edges + int(self.edges)

    def add_times(self, times: Mapping[str, float]) -> None:
        """Add seconds by phase."""
        for name, seconds in times.items():
            self.times[name] = self.times.get(name, 0.0) + seconds

    def state_dict(self) -> dict[str, Any]:
        """Plain data and a CPU tensor; synchronises the device."""
        names = ("num_seeds", "num_steps", "num_skipped", "lr", "seconds")
        state = {name: getattr(self, name) for name in names}
        loss, times = self.loss.cpu().clone(), dict(self.times)
        return {**state, "loss": loss, "num_edges": self.total_edges(), "times": times}

    @classmethod
    def restored(
        cls, ranks: Sequence[Mapping[str, Any]], context: DistributedContext
    ) -> EpochTotals:
        """This rank's totals, from the states of all ranks.

        On another number of ranks than before, rank 0 takes over the sums of all.
        """
        totals, first = cls.start(context.device), ranks[0]
        totals.num_steps, totals.num_skipped = first["num_steps"], first["num_skipped"]
        totals.step += totals.num_steps
        totals.lr, totals.seconds = first["lr"], first["seconds"]
        totals.times = dict(first.get("times", {}))
        if len(ranks) == context.world_size:
            ranks = [ranks[context.rank]]
        elif not context.is_main:
            ranks = []
        for state in ranks:
            totals.loss += state["loss"].to(context.device)
            totals.num_seeds += state["num_seeds"]
            totals.num_edges += state["num_edges"]
        return totals
