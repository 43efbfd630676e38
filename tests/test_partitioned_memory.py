"""A rank of a graph in parts holds nothing that is as long as the graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gnntrain.data.graph import GraphData
from gnntrain.data.partitioning.build import write_parts
from tests.graphs import stored

NUM_NODES = 3_000_000
LIMIT = 9_000_000
"""Bytes: fewer than an int32 of each node take, 12 MB."""

SCRIPT = """
import os
import resource
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from gnntrain.build import build_exchange, build_loaders, build_model, build_task
from gnntrain.config import from_dict
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading import read_counts
from gnntrain.run_store import rank_graph
from gnntrain.training.forward import OnBatch

read_counts._NODES_AT_ONCE = 1 << 16
torch.set_num_threads(1)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one buffer to check arrays with


def train(folder: str, whole: bool) -> None:
    graph = {"graph": "partitioned", "parts": folder + "/parts"}
    config = from_dict(
        {
            "sampler": {"fan_outs": [4, 3], "threads": 0},
            "model": {"name": "gcn", "hidden_channels": 4, "num_layers": 2},
            "trainer": {"batch_size": 50},
            "distributed": {} if whole else graph,
        }
    )
    context = DistributedContext()
    with build_exchange(config, context) as exchange:
        path = Path(folder) / ("store" if whole else "parts")
        graph = rank_graph(config, path, context, exchange)
        task = build_task(config, graph)
        model = build_model(config, task, graph, context)
        loaders = build_loaders(config, task, model, graph, context, exchange)
        for batch in loaders.training_loader():
            task.loss(OnBatch(model)(batch), batch.y).backward()


small, large, limit = sys.argv[1:]
for whole in (False, True):  # loads all code
    train(small, whole)
used = next(line for line in open("/proc/self/status") if line.startswith("VmData:"))
limit = int(used.split()[1]) * 1024 + int(limit)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
train(large, whole=False)
print("partitioned")
try:
    train(large, whole=True)
except MemoryError:
    print("the whole graph does not fit")
"""


def _written(folder: Path, num_nodes: int) -> Path:
    """A store, and the same graph in three parts; a few nodes have edges."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    nodes = rng.permutation(num_nodes)[:900]
    splits = dict(zip(("train", "val", "test"), np.split(nodes, [500, 700]), strict=True))
    src, dst = rng.choice(nodes, (2, 8000))
    data = GraphData.of_arrays(
        dataset="large",
        num_nodes=num_nodes,
        src=src,
        dst=dst,
        labels=np.zeros(num_nodes, np.int8),
        num_classes=2,
        task="multiclass",
        splits=splits,
        features=np.ones((num_nodes, 1), np.float16),
    )
    store = stored(folder / "store", data, feature_dtype="float16")
    part_of = (np.arange(num_nodes) % 3).astype(np.uint8)
    write_parts(folder / "parts", store, part_of, 3, "random")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit a process's memory")
def test_a_limit_of_memory_that_the_whole_graph_breaks(tmp_path: Path) -> None:
    small, large = _written(tmp_path / "small", 2000), _written(tmp_path / "large", NUM_NODES)
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(small), str(large), str(LIMIT)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    told = ended.stdout.splitlines()
    assert told == ["partitioned", "the whole graph does not fit"], ended.stderr
