from __future__ import annotations

import threading

import pytest

from gnntrain.distributed.run_control import RunControl
from gnntrain.distributed.watch import watching


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_script_that_goes_on_after_its_run_is_neither_watched_nor_ended(has_failed: bool) -> None:
    control = RunControl()
    with watching(control, 60):
        [thread] = [one for one in threading.enumerate() if one.name == "gnntrain-watch"]
    if has_failed:
        control.abandon()
    thread.join(6)  # a process of an abandoned run is ended after 8 s
    assert not thread.is_alive()
