"""DGL's GraphBolt and a stack of `dgl.nn.SAGEConv` over blocks, as in DGL's own example.

`examples/graphbolt/node_classification.py` with the graph's node numbers in int32, which is
faster. Imports nothing of gnntrain: DGL 2.1 wants torch 2.2, so it has an environment of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.peers.turns import Spec, Turns, compete


class SAGE(nn.Module):
    """As in DGL's example, without dropout."""

    def __init__(self, in_channels: int, hidden: int, out_channels: int, num_layers: int) -> None:
        super().__init__()
        conv = importlib.import_module("dgl.nn").SAGEConv
        widths = [in_channels, *[hidden] * (num_layers - 1), out_channels]
        self.layers = nn.ModuleList(
            conv(before, after, "mean") for before, after in pairwise(widths)
        )

    def forward(self, blocks: Any, x: Tensor) -> Tensor:
        """Outputs of the seed nodes."""
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            x = x if i == len(self.layers) - 1 else F.relu(x)
        return x


class Batches:
    """GraphBolt's pipeline over a store's arrays: endless mini-batches."""

    def __init__(self, spec: Spec) -> None:
        self._gb: Any = importlib.import_module("dgl.graphbolt")
        self._spec = spec
        store = Path(spec.store)
        indices = _tensor(store, "indices")
        self._graph = self._gb.fused_csc_sampling_graph(_tensor(store, "indptr"), indices)
        self._index_type = indices.dtype
        self._nodes = _tensor(store, "split_train")
        self._labels = _tensor(store, "labels").long()
        self._features = _tensor(store, "features_0")
        self.num_features = self._features.shape[1]

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader()
        while True:
            yield from loader

    def _loader(self) -> Any:
        gb, spec = self._gb, self._spec
        items = gb.ItemSet(
            (self._nodes.to(self._index_type), self._labels[self._nodes]),
            names=("seed_nodes", "labels"),
        )
        pipe = gb.ItemSampler(items, batch_size=spec.batch_size, shuffle=True, drop_last=True)
        # GraphBolt counts layers from the input on: the seed nodes draw the last fan-out.
        pipe = pipe.sample_neighbor(self._graph, spec.fan_outs[::-1])
        rows = gb.TorchBasedFeature(self._features)
        store = gb.BasicFeatureStore({("node", None, "feat"): rows})
        # Its place in the pipeline is where loader processes end, so it is there in any case.
        wanted = [] if spec.stage == "sampling" else ["feat"]
        pipe = pipe.fetch_feature(store, node_feature_keys=wanted)
        return gb.DataLoader(pipe, num_workers=spec.loader_workers)


def _tensor(store: Path, name: str) -> Tensor:
    return torch.from_numpy(np.load(store / f"{name}.npy"))


def num_edges(batch: Any) -> int:
    return sum(int(hop.sampled_csc.indices.numel()) for hop in batch.sampled_subgraphs)


def trainer(spec: Spec, batches: Batches) -> Any:
    """A function that takes one training step and returns the number of edges."""
    model = SAGE(batches.num_features, spec.hidden, spec.num_classes, len(spec.fan_outs))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pulled = iter(batches)

    def step() -> int:
        batch = next(pulled)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
            out = model(batch.blocks, batch.node_features["feat"])
        torch.autograd.backward(F.cross_entropy(out.float(), batch.labels))
        optimizer.step()
        return num_edges(batch)

    return step


def run(turns: Turns) -> None:
    spec = turns.spec
    if spec.stage == "inference":
        turns.absent("this benchmark compares inference with PyG's way alone")
        return
    torch.set_num_threads(spec.threads)
    torch.manual_seed(0)
    batches = Batches(spec)
    pulled = iter(batches)
    step = trainer(spec, batches) if spec.stage == "step" else lambda: num_edges(next(pulled))
    step()  # what cannot be computed at all shows here
    turns.ready(
        f"GraphBolt, DataLoader(num_workers={spec.loader_workers})",
        {"torch": torch.__version__, "dgl": importlib.import_module("dgl").__version__},
    )
    # Between two turns the loader's processes have made two batches ready each.
    turns.take(step, 2 * spec.loader_workers)


if __name__ == "__main__":
    compete(run)
