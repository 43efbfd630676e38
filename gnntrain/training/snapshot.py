"""The state of one rank inside an epoch: its sums and its random-number generators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnntrain.devices import is_gpu, rng_state, seed_generators, set_rng_state
from gnntrain.distributed.context import DistributedContext

RankState = dict[str, Any]


@dataclass
class EpochTotals:
    """Sums over an epoch's steps.

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
        times: This rank's seconds by phase.
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


def rank_state(totals: EpochTotals | None, device: torch.device) -> RankState:
    """A rank's part of a checkpoint: the states of the generators of dropout, and its sums of an
    unfinished epoch."""
    state: RankState = {"rng": torch.get_rng_state()}
    if is_gpu(device):
        state[f"{device.type}_rng"] = rng_state(device)
    if totals is not None:
        state["totals"] = {
            "loss": totals.loss.cpu().clone(),
            "num_seeds": totals.num_seeds,
            "num_edges": totals.total_edges(),
            "num_steps": totals.num_steps,
            "num_skipped": totals.num_skipped,
            "lr": totals.lr,
            "seconds": totals.seconds,
            "times": dict(totals.times),
        }
    return state


def restored_totals(states: Sequence[RankState], context: DistributedContext) -> EpochTotals | None:
    """This rank's sums of the unfinished epoch; None if the epoch was complete.

    On another number of ranks than before, rank 0 takes over the sums of all.
    """
    saved = [state["totals"] for state in states if "totals" in state]
    if not saved:
        return None
    totals = EpochTotals.start(context.device)
    totals.num_steps, totals.num_skipped = saved[0]["num_steps"], saved[0]["num_skipped"]
    totals.step += totals.num_steps
    totals.lr, totals.seconds = saved[0]["lr"], saved[0]["seconds"]
    totals.times = dict(saved[0].get("times", {}))
    if len(saved) == context.world_size:
        saved = [saved[context.rank]]
    elif not context.is_main:
        saved = []
    for one in saved:
        totals.loss += one["loss"].to(context.device)
        totals.num_seeds += one["num_seeds"]
        totals.num_edges += one["num_edges"]
    return totals


def restore_rng(
    states: Sequence[RankState], context: DistributedContext, *, seed: int, step: int
) -> None:
    """Restore this rank's generators; with another number of ranks, seed new ones."""
    if len(states) != context.world_size:
        # Each rank gets its own stream, different from those of earlier steps.
        key = np.random.SeedSequence([seed, step, context.rank]).generate_state(1, np.uint64)
        seed_generators(int(key[0]), context.device)
        return
    own = states[context.rank]
    torch.set_rng_state(own["rng"])
    of_device = own.get(f"{context.device.type}_rng")
    if of_device is not None:
        set_rng_state(of_device, context.device)
