from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from gnntrain.training.records import EpochRecord, json_safe
from tests.reporting.samples import RECORD, SUMMARY, record, summary

FIELDS = {
    *("status", "dataset", "model", "num_parameters", "world_size", "seed", "epochs"),
    *("best_epoch", "metric", "train", "val", "test", "train_loss", "seconds_total"),
    *("seconds_per_epoch", "edges_per_s", "peak_rss_bytes", "peak_gpu_bytes"),
}


def test_a_record_has_the_promised_names_in_a_fixed_order() -> None:
    names = "epoch step train/loss val/accuracy train/accuracy test/accuracy lr seconds"
    names += " eval_seconds seeds_per_s edges_per_s memory"
    assert list(RECORD.flat()) == list(RECORD.to_dict()) == names.split()
    assert RECORD.flat()["val/accuracy"] == 0.5
    bare = record(metrics={}, gpu_memory_bytes=7)
    assert not [name for name in bare.flat() if "accuracy" in name]
    assert bare.flat()["gpu_memory"] == 7


def test_phases_are_an_object_in_the_file_and_scalars_for_loggers() -> None:
    timed = record(time={"forward": 0.2, "background/sample": 0.1})
    assert timed.flat()["time/background/sample"] == 0.1
    row = timed.to_dict()
    assert row["time"] == {"forward": 0.2, "background/sample": 0.1}
    assert not [name for name in row if name.startswith("time/")]
    assert EpochRecord.from_dict(json.loads(json.dumps(row))) == timed


def test_a_summary_has_every_field_that_scripts_rely_on() -> None:
    row = SUMMARY.to_dict()
    assert set(row) >= FIELDS
    assert not {"error", "extra"} & set(row)
    failed = summary(
        status="failed",
        error="out of memory",
        extra={"store": "x", "status": "never replaced"},
        train_loss=[1.0, math.nan, math.inf],
        val={"accuracy": -math.inf},
    )
    row = json.loads(json.dumps(failed.to_dict(), allow_nan=False))
    assert (row["status"], row["error"], row["store"]) == ("failed", "out of memory", "x")
    assert (row["train_loss"], row["val"]) == ([1.0, None, None], {"accuracy": None})


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
