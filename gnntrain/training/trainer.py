"""The epoch loop."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gnntrain.config import TrainerConfig
from gnntrain.data.build import Task
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RunError
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.loader import Loader
from gnntrain.models import GNN, PlainModel
from gnntrain.training.checkpoint import CheckpointWriter, State
from gnntrain.training.evaluation import Evaluator, SplitMetrics
from gnntrain.training.forward import OnBatch
from gnntrain.training.losses import build_loss
from gnntrain.training.measure import peak_gpu_bytes, resident_bytes
from gnntrain.training.optimizer import build_optimizer, build_schedule
from gnntrain.training.records import Callback, EpochRecord, FitResult, StepProgress

_log = logging.getLogger("gnntrain")

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class _EpochTotals:
    """Sums over an epoch's steps; the loss stays on the device until it is printed."""

    loss: Tensor
    num_seeds: int = 0
    num_edges: int = 0
    num_steps: int = 0
    lr: float = 0.0


class Trainer:
    """Trains a model: every rank makes one and calls `fit`.

    Args:
        model: On the context's device already, with equal weights on all ranks.
        loader: This rank's mini-batches.
        evaluator: Called every `config.eval_every` epochs and after the last.
        task: What is predicted.
        metric: The validation metric that decides which epoch is the best.
        config: The `trainer` keys.
        callbacks: Told what happens; on rank 0 only.
        checkpoints: Directory for `last.pt` and `best.pt`; None writes none.
        identity: Plain data that a checkpoint carries besides (the resolved configuration).
    """

    def __init__(
        self,
        model: GNN | PlainModel,
        loader: Loader,
        evaluator: Evaluator,
        *,
        task: Task,
        metric: str,
        config: TrainerConfig,
        context: DistributedContext | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoints: Path | None = None,
        identity: dict[str, Any] | None = None,
    ) -> None:
        self.result = FitResult()
        self._model = model
        self._loader = loader
        self._evaluator = evaluator
        self._metric = metric
        self._config = config
        self._context = context or DistributedContext()
        self._callbacks = callbacks if self._context.is_main else ()
        self._writer = CheckpointWriter(checkpoints) if checkpoints is not None else None
        self._identity = identity or {}
        self._loss = build_loss(task, config.label_smoothing)
        self._history: list[dict[str, int | float]] = []
        self._step = 0
        self._num_steps = config.epochs * len(loader)
        if config.max_steps is not None:
            self._num_steps = min(self._num_steps, config.max_steps)
        self._optimizer = build_optimizer(model.parameters(), config)
        self._schedule = build_schedule(
            self._optimizer, config, steps_per_epoch=len(loader), num_steps=self._num_steps
        )
        device = self._context.device
        self._dtype = _AUTOCAST.get(config.precision)
        self._scaler = torch.amp.GradScaler(
            device.type, enabled=config.precision == "fp16" and device.type == "cuda"
        )
        self._module = self._wrap(OnBatch(model))

    def _wrap(self, module: nn.Module) -> nn.Module:
        if self._config.compile:
            module = torch.compile(module, dynamic=True)  # type: ignore[assignment]
        if self._context.world_size > 1:
            # Ours use all their parameters in every step; a user's may not.
            unused = isinstance(self._model, PlainModel)
            module = DistributedDataParallel(module, find_unused_parameters=unused)
        return module

    def fit(self) -> FitResult:
        """Train to the end, or until the validation metric has stalled for `patience` evaluations.

        `result` is up to date at any time, and the checkpoints of what was reached are written
        also when an exception (or Ctrl-C) ends it.
        """
        try:
            for epoch in range(1, self._config.epochs + 1):
                self._run_epoch(epoch)
                if self._step >= self._num_steps or self._stalled(epoch):
                    break
        finally:
            if self._writer is not None:
                self._writer.flush()
        return self.result

    def _run_epoch(self, epoch: int) -> None:
        start = time.perf_counter()
        totals = self._train(epoch)
        loss, num_seeds, num_edges = self._reduced(totals)
        trained = time.perf_counter()
        _log.info("epoch %d: step %d, loss %g, %.3f s", epoch, self._step, loss, trained - start)
        self._refuse_nonfinite(loss, epoch)
        metrics = self._evaluate(epoch)
        seconds = trained - start
        memory = sum(self._context.gather(resident_bytes()))
        self.result.records.append(
            EpochRecord(
                epoch=epoch,
                step=self._step,
                train_loss=loss,
                metrics=metrics,
                lr=totals.lr,
                seconds=seconds,
                eval_seconds=time.perf_counter() - trained,
                seeds_per_s=num_seeds / seconds,
                edges_per_s=num_edges / seconds,
                memory_bytes=memory,
                gpu_memory_bytes=peak_gpu_bytes(self._context.device) or None,
            )
        )
        self._history.append(self.result.records[-1].flat())
        improved = self._note_best(epoch, metrics)
        self._checkpoint(improved)
        for callback in self._callbacks:
            callback.on_epoch(self.result.records[-1])

    def _train(self, epoch: int) -> _EpochTotals:
        self._module.train()
        self._loader.set_epoch(epoch)
        totals = _EpochTotals(torch.zeros((), device=self._context.device))
        start = time.perf_counter()
        for batch in self._loader:
            self._train_step(batch, totals)
            self._report_step(epoch, totals, time.perf_counter() - start)
            del batch  # or it would live on while the next is waited for
            if self._step >= self._num_steps:
                break
        return totals

    def _train_step(self, batch: MiniBatch, totals: _EpochTotals) -> None:
        batch = batch.to(self._context.device, non_blocking=True)
        self._optimizer.zero_grad(set_to_none=True)
        device = self._context.device.type
        with torch.autocast(device, self._dtype, enabled=self._dtype is not None):
            logits = self._module(batch)
        loss_sum = self._loss(logits, batch.y) * (batch.num_counted > 0)
        # DDP averages over ranks; times world_size it is the gradient of the global mean.
        scale = self._context.world_size / batch.global_batch_size
        torch.autograd.backward(self._scaler.scale(loss_sum * scale))
        if self._config.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._model.parameters(), self._config.clip_norm)
        totals.lr = self._optimizer.param_groups[0]["lr"]
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._schedule.after_step()
        self._step += 1
        totals.loss += loss_sum.detach()
        totals.num_seeds += batch.num_counted
        totals.num_edges += sum(block.num_edges for block in batch.blocks)
        totals.num_steps += 1

    def _report_step(self, epoch: int, totals: _EpochTotals, seconds: float) -> None:
        if not self._callbacks:
            return
        # To read the loss waits for the device: not at every step.
        is_due = totals.num_steps % self._config.log_every == 0
        ranks = self._context.world_size  # rank 0 speaks for all: their shares are even
        progress = StepProgress(
            epoch=epoch,
            step=totals.num_steps,
            num_steps=len(self._loader),
            loss=float(totals.loss) / max(1, totals.num_seeds) if is_due else None,
            seeds_per_s=ranks * totals.num_seeds / seconds,
            edges_per_s=ranks * totals.num_edges / seconds,
            memory_bytes=resident_bytes() * ranks,
        )
        for callback in self._callbacks:
            callback.on_step(progress)

    def _reduced(self, totals: _EpochTotals) -> tuple[float, int, int]:
        """The epoch's mean loss, seeds and edges over all ranks."""
        values = [float(totals.loss), totals.num_seeds, totals.num_edges]
        sums = self._context.sum(
            torch.tensor(values, dtype=torch.float64, device=self._context.device)
        )
        loss, num_seeds, num_edges = sums.tolist()
        return loss / max(1.0, num_seeds), int(num_seeds), int(num_edges)

    def _refuse_nonfinite(self, loss: float, epoch: int) -> None:
        if not math.isfinite(loss):
            raise RunError(
                f"The training loss is {loss} in epoch {epoch} (step {self._step}).",
                f"Lower trainer.lr (now {self._config.lr}), set trainer.clip_norm=1, or look for "
                "extreme features; checkpoints of earlier epochs are kept.",
            )

    def _evaluate(self, epoch: int) -> SplitMetrics:
        last = epoch == self._config.epochs or self._step >= self._num_steps
        if not last and epoch % self._config.eval_every:
            return {}
        # Batch-norm statistics differ between ranks; the checkpoint holds rank 0's.
        self._context.synchronize_buffers(self._model)
        metrics = self._evaluator.evaluate(self._model)
        value = metrics["val"].get(self._metric)
        if value is not None:
            self._schedule.after_evaluation(value)
        return metrics

    def _note_best(self, epoch: int, metrics: SplitMetrics) -> bool:
        """Whether `epoch` is the best so far; without a validation metric the latest is."""
        if not metrics:
            return False
        value, best = (m.get("val", {}).get(self._metric) for m in (metrics, self.result.best))
        if best is not None and not math.isnan(best) and not (value or -math.inf) > best:
            return False
        self.result.best_epoch, self.result.best = epoch, metrics
        return True

    def _stalled(self, epoch: int) -> bool:
        patience, best = self._config.patience, self.result.best_epoch
        if patience == 0 or best is None:
            return False
        evaluated = [record.epoch for record in self.result.records if record.metrics]
        return sum(best < e <= epoch for e in evaluated) >= patience

    def _checkpoint(self, improved: bool) -> None:
        rng = self._context.gather(_rng_state(self._context.device))
        if self._writer is not None and self._context.is_main:
            self._writer.offer(self._state(rng), best=improved)

    def _state(self, rng: list[dict[str, Tensor]]) -> State:
        return {
            # copies, since the weights go on changing before the state is written
            "model": copy.deepcopy(self._model.state_dict()),
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "schedule": copy.deepcopy(self._schedule.state_dict()),
            "scaler": self._scaler.state_dict(),
            "loader": self._loader.state_dict(),
            "rng": rng,
            "epoch": self.result.records[-1].epoch,
            "step": self._step,
            "best_epoch": self.result.best_epoch,
            "best": self.result.best,
            "history": list(self._history),
            "world_size": self._context.world_size,
            **self._identity,
        }


def _rng_state(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
