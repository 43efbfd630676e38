from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.training.records import EpochRecord, json_safe
from tests.reporting.samples import INFO, RECORD, STEP, SUMMARY, record, summary

FIELDS = {
    *("status", "dataset", "model", "num_parameters", "world_size", "seed", "epochs"),
    *("best_epoch", "metric", "train", "val", "test", "train_loss", "seconds_total"),
    *("seconds_per_epoch", "edges_per_s", "peak_rss_bytes", "peak_gpu_bytes"),
}


def test_a_flat_record_has_the_promised_names_in_a_fixed_order() -> None:
    names = "epoch step train/loss val/accuracy train/accuracy test/accuracy lr seconds"
    names += " eval_seconds seeds_per_s edges_per_s memory"
    assert list(RECORD.flat()) == names.split()
    assert RECORD.flat()["val/accuracy"] == 0.5
    assert RECORD.flat()["memory"] == RECORD.memory_bytes


def test_gpu_memory_is_in_a_flat_record_only_where_there_is_a_gpu() -> None:
    assert "gpu_memory" not in RECORD.flat()
    assert record(gpu_memory_bytes=7).flat()["gpu_memory"] == 7


def test_phases_are_an_object_in_the_file_and_scalars_for_loggers() -> None:
    timed = record(time={"forward": 0.2, "background/sample": 0.1})
    assert timed.flat()["time/background/sample"] == 0.1
    row = timed.to_dict()
    assert row["time"] == {"forward": 0.2, "background/sample": 0.1}
    assert not [name for name in row if name.startswith("time/")]
    assert EpochRecord.from_flat(json.loads(json.dumps(row))) == timed


def test_an_epoch_that_was_not_evaluated_has_no_metric() -> None:
    bare = record(metrics={})
    assert bare.metric("val", "accuracy") is None
    assert not [name for name in bare.flat() if "accuracy" in name]


def test_a_summary_has_every_field_that_scripts_rely_on() -> None:
    row = SUMMARY.to_dict()
    assert set(row) >= FIELDS
    assert row["test"] == {"accuracy": 0.69}
    assert row["train_loss"] == [1.9375, 1.5, 1.25]


def test_extra_fields_of_a_summary_stand_beside_the_others_and_never_replace_one() -> None:
    row = summary(extra={"store": "x", "status": "wrong"}).to_dict()
    assert row["store"] == "x"
    assert row["status"] == "completed"
    assert "extra" not in row


def test_the_error_is_in_a_summary_only_where_there_was_one() -> None:
    assert "error" not in SUMMARY.to_dict()
    assert summary(status="failed", error="out of memory").to_dict()["error"] == "out of memory"


def test_numbers_that_are_not_finite_become_null() -> None:
    row = summary(train_loss=[1.0, math.nan, math.inf], val={"accuracy": -math.inf}).to_dict()
    text = json.dumps(row, allow_nan=False)
    assert json.loads(text)["train_loss"] == [1.0, None, None]
    assert json.loads(text)["val"] == {"accuracy": None}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    )
)
def test_what_is_json_safe_can_be_written_as_strict_json(value: object) -> None:
    text = json.dumps(json_safe(value), allow_nan=False)
    assert json_safe(json.loads(text)) == json_safe(value)


@pytest.mark.parametrize("row", [INFO, STEP, RECORD, SUMMARY])
def test_records_travel_between_processes(row: object) -> None:
    assert pickle.loads(pickle.dumps(row)) == row


def test_the_records_need_no_torch() -> None:
    code = "import gnntrain.training.records, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
