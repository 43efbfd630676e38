"""One optimiser step: forward, loss, backward with the gradient exchange, update."""

from __future__ import annotations

import copy
import math
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gnntrain.compute.products import prepare_autocast
from gnntrain.config import TrainerConfig
from gnntrain.devices import is_gpu
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading.batch import Batch
from gnntrain.models import AnyModel, PlainModel
from gnntrain.models.embedding import embedding_tables
from gnntrain.phases import Phases
from gnntrain.tasks import Task
from gnntrain.training.checkpoint import State
from gnntrain.training.forward import OnBatch
from gnntrain.training.optimizer import build_optimizer, build_schedule
from gnntrain.training.row_optimizer import RowOptimizer
from gnntrain.training.totals import EpochTotals

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Update:
    """Updates a model's weights, equally on all ranks.

    Args:
        model: On the context's device already, with equal weights on all ranks.
        task: Gives the loss, and the direction of the metric that a schedule may follow.
        num_steps: Steps of the whole run, over which schedules fall.
        phases: Takes the time of each part.

    Attributes:
        optimizer: Holds the weights and their learning rate, but for embedding tables.
    """

    def __init__(
        self,
        model: AnyModel,
        task: Task,
        config: TrainerConfig,
        context: DistributedContext,
        *,
        steps_per_epoch: int,
        num_steps: int,
        phases: Phases,
    ) -> None:
        self._model = model
        self._config = config
        self._context = context
        self._phases = phases
        self._task = task
        tables = [table for _, table in embedding_tables(model)]
        self._row_optimizer = RowOptimizer(tables, config, context) if tables else None
        rows = {id(table.weight) for table in tables}
        self._weights = [weight for weight in model.parameters() if id(weight) not in rows]
        self.optimizer = build_optimizer(self._weights, config)
        self._schedule = build_schedule(
            self.optimizer,
            config,
            steps_per_epoch=steps_per_epoch,
            num_steps=num_steps,
            higher_is_better=task.metric.higher_is_better,
        )
        if is_gpu(context.device):
            torch.set_float32_matmul_precision(config.matmul_precision)
        self._dtype = _AUTOCAST.get(config.precision)
        if self._dtype == torch.bfloat16:
            prepare_autocast()
        self._device = context.device.type
        self._scaler = torch.amp.GradScaler(
            self._device, enabled=config.precision == "fp16" and is_gpu(context.device)
        )
        self._module = self._wrap(OnBatch(model))

    def _wrap(self, module: nn.Module) -> nn.Module:
        # Built-in models use all parameters in every step; a user's model may not.
        unused = self._context.world_size > 1 and isinstance(self._model, PlainModel)
        if unused:  # else torch warns at length where a user's model does use all
            never = nn.Parameter(torch.zeros(1, device=self._context.device))
            module.register_parameter("never_used", never)
        if self._config.compile:
            module = compiled(module, self._context.device)
        if self._context.world_size > 1:
            module = DistributedDataParallel(
                module, process_group=self._context.group, find_unused_parameters=unused
            )
            if self._context.world_size > 2 and self._device == "cpu" and not unused:
                # DDP orders its buckets anew after the first backward pass, and gloo adds up the
                # numbers of three ranks in an order that depends on their position in a bucket. So
                # that is done before the first step, of a resumed run too: they agree bit for bit.
                torch.autograd.backward(module(None))
                self.optimizer.zero_grad(set_to_none=True)
            for weight in self._model.parameters():
                if weight.requires_grad:
                    hook = self._phases.mark
                    weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return module

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def after_step(self) -> None:
        """Step a schedule by steps."""
        if not isinstance(self._schedule, ReduceLROnPlateau):
            self._schedule.step()

    def after_evaluation(self, metric: float | None) -> None:
        """Step a schedule by the validation metric; None: it was not computed."""
        if metric is None or math.isnan(metric):
            return
        if isinstance(self._schedule, ReduceLROnPlateau):
            self._schedule.step(metric)

    def __call__(self, batch: Batch, totals: EpochTotals) -> None:
        """Update the weights and add to the totals."""
        totals.step += 1
        self.optimizer.zero_grad(set_to_none=True)
        with self._phases("forward"):
            with torch.autocast(self._device, self._dtype, enabled=self._dtype is not None):
                outputs = self._module(batch)
            loss_sum = self._task.loss(outputs, batch.y) * (batch.num_counted > 0)
        # DDP averages over ranks; times world_size it is the gradient of the global mean.
        scale = self._context.world_size / batch.global_batch_size
        with self._phases.split("backward", "all_reduce"), self._context.control.waiting():
            torch.autograd.backward(self._scaler.scale(loss_sum * scale))
            rows = [] if self._row_optimizer is None else self._row_optimizer.collect()
        with self._phases("optimizer"):
            if not self._take_step(rows):
                totals.num_skipped += 1
                return
        totals.count(loss_sum.detach())
        totals.num_seeds += batch.num_counted
        if batch.is_padded:
            for hop in batch.hops:
                for block in hop.edges.values():
                    totals.edges += block.indptr[-1]
        else:
            totals.num_edges += sum(hop.num_edges for hop in batch.hops)

    def _take_step(self, rows: Sequence[nn.Parameter]) -> bool:
        """Call the optimisers; False if the gradient is not finite and the step is skipped.

        Args:
            rows: See `RowOptimizer.collect`.
        """
        weights: list[nn.Parameter] = [*self._weights, *rows]
        optimizers: list[Any] = [self.optimizer]
        if self._row_optimizer is not None and rows:
            self._row_optimizer.param_groups[0]["lr"] = self.lr
            optimizers.append(self._row_optimizer)
        skips = self._config.on_nonfinite == "skip" and not self._scaler.is_enabled()
        if self._config.clip_norm is not None:
            for optimizer in optimizers:
                self._scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(weights, self._config.clip_norm)
        elif skips:
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            norm = nn.utils.get_total_norm(gradients)
        # DDP gives all ranks the same gradient: all skip the step, or no rank does.
        if skips and not bool(norm.isfinite()):
            return False
        for optimizer in optimizers:
            self._scaler.step(optimizer)
        self._scaler.update()
        return True

    def state_dict(self) -> State:
        """Copies of the states of model, optimisers, schedule and scaler."""
        state = {
            "model": copy.deepcopy(self._model.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "schedule": copy.deepcopy(self._schedule.state_dict()),
            "scaler": self._scaler.state_dict(),
        }
        if self._row_optimizer is not None:
            state["row_optimizer"] = copy.deepcopy(self._row_optimizer.state_dict())
        return state

    def load_state_dict(self, state: State) -> None:
        """Load the state of `state_dict` but the weights, which `load_weights` checks and loads."""
        # How a step is computed is this device's: it was perhaps saved on another.
        mine, saved = self.optimizer.param_groups[0], state["optimizer"]
        device = {key: mine[key] for key in ("capturable", "fused") if key in mine}
        groups = [group | device for group in saved["param_groups"]]
        self.optimizer.load_state_dict({**saved, "param_groups": groups})
        if self._row_optimizer is not None:
            self._row_optimizer.load_state_dict(state["row_optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._scaler.load_state_dict(state["scaler"])


def compiled(module: nn.Module, device: torch.device) -> nn.Module:
    """The module, compiled when it is first called, for batches of any size.

    The operators of `gnntrain.compute` are called unchanged; the code around them is compiled.

    Raises:
        UserError: torch cannot compile with this Python, or finds no C++ compiler for the CPU.
    """
    hint = "Set trainer.compile=false; the aggregation has kernels of its own either way."
    default = "clang++" if sys.platform == "darwin" else "g++"
    compiler = shlex.split(os.environ.get("CXX") or default)[0]
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise UserError(
            f"trainer.compile=true needs a C++ compiler, and there is no {compiler} here",
            f"Install one, or name yours in the environment variable CXX. {hint}",
        )
    for _, table in embedding_tables(module):  # a leaf of autograd cannot be made in compiled code
        table.forward = torch.compiler.disable(table.forward)  # type: ignore[method-assign,no-untyped-call]
    try:
        made: nn.Module = torch.compile(module, dynamic=True)  # type: ignore[assignment]
    except RuntimeError as error:
        raise UserError(f"trainer.compile=true: {error}", hint) from error
    return made
