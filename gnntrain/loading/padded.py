"""Batches of a fixed size, which a CUDA graph can record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gnntrain import devices
from gnntrain.compute.features import as_tensor
from gnntrain.loading.batch import Batch
from gnntrain.loading.loader import RankBatch, SampledLoader
from gnntrain.loading.transfer import send_all
from gnntrain.sampling.base import Seeds


@dataclass(frozen=True, slots=True)
class SeedBatch:
    """What differs from step to step: on the device the seeds of the share, int64 `[batch_size]`,
    and the keys of `GPUSampler.hop_keys`."""

    share: RankBatch
    seeds: Tensor
    keys: Tensor


class PaddedBatches:
    """A loader's batches in two stages: seeds and keys of each step; the work on the device.

    The second stage needs no synchronisation: all its tensors have their largest possible size. The
    outputs equal those without padding, except for statistics over all rows (batch norm).

    Args:
        loader: Its position moves as the steps are iterated over; its sampler is a `GPUSampler`.
    """

    def __init__(self, loader: SampledLoader) -> None:
        self._sampler: Any = loader.sampler
        self._loader = loader

    def __iter__(self) -> Iterator[SeedBatch]:
        """The steps from the loader's position to the end of its epoch."""
        for share, key in self._loader.rank_batches():
            keys = self._sampler.hop_keys(key)
            yield SeedBatch(share, self._sent(as_tensor(share.seeds)), self._sent(keys))

    def make(self, step: SeedBatch) -> Batch:
        """The padded batch of a step."""
        sample, values = self._sampler.sample_padded(step.seeds, step.keys), self._loader.values
        seeds = Seeds({values.schema.target: step.seeds}, values.targets_of(step.seeds))
        return self._loader.fill(sample, seeds, step.share)

    def _sent(self, tensor: Tensor) -> Tensor:
        """Copy a small tensor to the device, without synchronisation."""
        device = self._loader.device
        return send_all([tensor], device)[0] if devices.is_gpu(device) else tensor.clone()
