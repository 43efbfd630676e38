from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from gnntrain.distributed.bounded_store import BoundedStore
from gnntrain.distributed.run_control import StoreTimeout
from tests.distributed.stores import KINDS, Clients, FrozenStore, GoneStore


@pytest.mark.parametrize("kind", KINDS)
def test_it_answers_as_the_store_does(kind: str, tmp_path: Path) -> None:
    clients = Clients(kind, tmp_path)  # serves the store while it lives
    store = BoundedStore(clients.client, timeout=30)
    assert store.add("n", 2) == 2
    assert store.add("n", 1) == 3
    assert store.compare_set("a", "", "") == b""
    store.set("a", "1")
    assert store.compare_set("a", "1", "2") == b"2"


def test_a_store_that_has_gone_raises_its_own_error() -> None:
    store = BoundedStore(GoneStore, timeout=30)
    with pytest.raises(dist.DistNetworkError, match="Broken pipe"):
        store.add("n", 1)
    assert not store.is_silent


def test_a_store_that_does_not_answer_ends_the_calls_of_all_threads() -> None:
    frozen = FrozenStore()
    store = BoundedStore(lambda: frozen, timeout=1)
    ended: list[Exception] = []

    def call() -> None:
        try:
            store.add("n", 1)
        except dist.DistError as error:
            ended.append(error)

    began = time.monotonic()
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in ended] == [StoreTimeout] * 3
    assert 1 <= time.monotonic() - began < 15
    with pytest.raises(StoreTimeout):
        store.set("a", "1")
    frozen.thaw.set()
