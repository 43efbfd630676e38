"""A run, an epoch and an end to report, each with what a test wants different."""

from __future__ import annotations

import dataclasses
from typing import Any

from gnntrain.training.records import EpochRecord, RunInfo, StepProgress, Summary

INFO = RunInfo(
    metric="accuracy",
    epochs=3,
    run_dir="runs/demo",
    facts={
        "dataset": "synthetic",
        "positive": "",
        "store": "opened (12 ms)\nstores/synthetic-1234567890ab",
        "training": "3 epochs · 20 steps an epoch · 1,024 seeds a step · seed 0",
    },
)
RECORD = EpochRecord(
    epoch=1,
    step=20,
    train_loss=1.9375,
    metrics={"train": {"accuracy": 0.52}, "val": {"accuracy": 0.5}, "test": {"accuracy": 0.49}},
    lr=0.001,
    seconds=0.6,
    eval_seconds=0.2,
    seeds_per_s=12_345.0,
    edges_per_s=1_210_000.0,
    memory_bytes=3 * 2**29,
)
STEP = StepProgress(
    epoch=1,
    step=10,
    num_steps=20,
    loss=2.0,
    seeds_per_s=12_345.0,
    edges_per_s=1_210_000.0,
    memory_bytes=3 * 2**29,
)
SUMMARY = Summary(
    status="completed",
    dataset="synthetic",
    model="sage",
    num_parameters=84_232,
    world_size=2,
    seed=0,
    epochs=3,
    best_epoch=2,
    metric="accuracy",
    train={"accuracy": 0.72},
    val={"accuracy": 0.7},
    test={"accuracy": 0.69},
    train_loss=[1.9375, 1.5, 1.25],
    seconds_total=3.21,
    seconds_per_epoch=0.6,
    edges_per_s=1_210_000.0,
    peak_rss_bytes=2**31,
    seeds_per_s=12_345.0,
)


def info(**changes: Any) -> RunInfo:
    return dataclasses.replace(INFO, **changes)


def record(epoch: int = 1, **changes: Any) -> EpochRecord:
    return dataclasses.replace(RECORD, epoch=epoch, step=20 * epoch, **changes)


def record_with_val(epoch: int, accuracy: float) -> EpochRecord:
    return record(epoch, metrics={"val": {"accuracy": accuracy}})


def step(**changes: Any) -> StepProgress:
    return dataclasses.replace(STEP, **changes)


def summary(**changes: Any) -> Summary:
    return dataclasses.replace(SUMMARY, **changes)
