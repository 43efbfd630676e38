"""A training step as a CUDA graph: recorded once, then one launch replays hundreds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from gnntrain.errors import UserError
from gnntrain.loading.loader import SampledLoader, SeedBatch
from gnntrain.phases import Phases
from gnntrain.training.memory import lacking_memory
from gnntrain.training.totals import EpochTotals
from gnntrain.training.update import Update

# The first steps initialise libraries and compile kernels, which cannot be captured.
_NUM_EAGER = 3


class CUDAGraphStep:
    """A training step as one CUDA graph: sampling, gathering, model and optimiser, on fixed memory.

    The first steps of full size run eagerly, then one is captured. From then on a step is three
    copies into the graph's memory (seeds, keys, learning rate) and a replay. All of them train.

    Args:
        loader: Its `seed_batches` are the steps to call this with.
        update: Trains on a batch and adds to the totals; only its work on the device is recorded.
        phases: Takes the time of replays; of other steps `update` takes it.
    """

    def __init__(self, loader: SampledLoader, update: Update, phases: Phases) -> None:
        # Eager steps keep their counters in GPU memory too, so that a later step can be captured.
        warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
        self.loader = loader
        self._update = update
        self._optimizer = update.optimizer
        self._device = device = loader.device
        self._phases = phases
        self._given: SeedBatch | None = None
        self._totals = EpochTotals.start(device)
        self._rate = torch.zeros((), device=device)
        self._side: Any = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._num_eager = 0
        self._replay: Callable[[], None] | None = None

    def __call__(self, step: SeedBatch, totals: EpochTotals) -> None:
        """Train one step; from the first on, the totals' tensors are the graph's own."""
        self._totals.lend(totals)
        totals.num_seeds += step.share.num_counted
        if self._given is not None and len(step.seeds) < len(self._given.seeds):
            self._update(self.loader.padded(step), self._totals)  # the rest of an epoch
            return
        if self._given is None or len(step.seeds) > len(self._given.seeds):
            # A resumed run may begin with the smaller last batch of an epoch.
            seeds, keys = step.seeds.clone(), step.keys.clone()
            self._given, self._num_eager, self._replay = SeedBatch(step.share, seeds, keys), 0, None
        self._given.seeds.copy_(step.seeds)
        self._given.keys.copy_(step.keys)
        self._rate.fill_(self._optimizer.param_groups[0]["lr"])
        if self._replay is None and self._num_eager < _NUM_EAGER:
            self._num_eager += 1
            with self._rate_in_memory(), _aside(self._side):
                self._run()
            return
        if self._replay is None:
            with self._rate_in_memory():
                try:
                    self._replay = recorded(self._run, self._device)
                except RuntimeError as error:
                    if lacking_memory(error):
                        raise
                    said = str(error).partition("\n")[0]
                    raise UserError(
                        f"A step could not be recorded as a CUDA graph: {said}.",
                        "Set trainer.cuda_graph=false: each step is launched anew.",
                    ) from error
        with self._phases("replay"):
            self._replay()

    def _run(self) -> None:
        assert self._given is not None
        self._update(self.loader.padded(self._given), self._totals)

    @contextmanager
    def _rate_in_memory(self) -> Iterator[None]:
        """Keep the optimiser's learning rate and step count in device memory."""
        groups = self._optimizer.param_groups
        before = [dict(group) for group in groups]
        if self._device.type == "cuda":
            own = {"fused": True} if isinstance(self._optimizer, SGD) else {"capturable": True}
            for group in groups:
                group |= own | {"lr": self._rate}
            for state in self._optimizer.state.values():
                if isinstance(state.get("step"), Tensor):
                    state["step"] = state["step"].to(self._device)
        try:
            yield
        finally:
            for group, keys in zip(groups, before, strict=True):
                group["lr"] = keys["lr"]


def recorded(body: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The function that replays `body`; on a CPU, in Triton's interpreter, `body` itself."""
    if device.type == "cpu":
        return body
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the device meanwhile: one writes checkpoints.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        body()
    return graph.replay


@contextmanager
def _aside(side: Any) -> Iterator[None]:
    """Run on a side stream, as CUDA demands of the steps before a capture."""
    if side is None:
        yield
        return
    current = torch.cuda.current_stream(side.device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)
