"""Stock PyG: `NeighborLoader` over pyg-lib or torch-sparse, and a stack of `SAGEConv`.

Variants: `pyg` computes every layer for all sampled nodes, as in PyG's own examples;
`pyg-trimmed` drops what a layer no longer needs with `trim_to_layer`. Inference is the layer-wise
way of PyG's `reddit.py`: a `NeighborLoader` over all in-neighbours, one layer at a time.

Imports nothing of gnntrain: it runs in any environment that has PyG and a sampling backend.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric
import torch_geometric.typing
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.utils import trim_to_layer

from scripts.bench.peers.turns import Spec, Turns, compete

Hops = tuple[list[int], list[int]]
"""Nodes found and edges drawn a hop."""


class SAGE(nn.Module):
    """As in PyG's examples."""

    def __init__(self, in_channels: int, hidden: int, out_channels: int, num_layers: int) -> None:
        super().__init__()
        widths = [in_channels, *[hidden] * (num_layers - 1), out_channels]
        self.convs = nn.ModuleList(SAGEConv(*widths[i : i + 2]) for i in range(num_layers))

    def forward(self, x: Tensor, edge_index: Tensor, hops: Hops | None) -> Tensor:
        """Outputs of all nodes, or, trimmed by `hops`, of the seed nodes."""
        for i, conv in enumerate(self.convs):
            if hops is not None:
                x, edge_index, _ = trim_to_layer(i, hops[0], hops[1], x, edge_index)
            x = self.layer(i, conv(x, edge_index))
        return x

    def layer(self, i: int, x: Tensor) -> Tensor:
        """What follows convolution `i`."""
        return x if i == len(self.convs) - 1 else F.relu(x)


def load(store: Path) -> Data:
    """The store's arrays as PyG wants them: a COO `edge_index` in int64, sorted by column."""
    indices = np.load(store / "indices.npy")
    degrees = torch.from_numpy(np.diff(np.load(store / "indptr.npy")))
    edge_index = torch.empty(2, len(indices), dtype=torch.int64)
    edge_index[0] = torch.from_numpy(indices)
    start = 0
    for columns in torch.split(
        torch.arange(len(degrees)), 2**18
    ):  # a copy of the whole would be a peak
        part = columns.repeat_interleave(degrees[columns])
        edge_index[1, start : start + len(part)] = part
        start += len(part)
    return Data(
        x=torch.from_numpy(np.load(store / "features_0.npy")),
        y=torch.from_numpy(np.load(store / "labels.npy")).long(),
        edge_index=edge_index,
        num_nodes=len(degrees),
    )


def loader(data: Data, spec: Spec, nodes: Tensor, num_neighbors: list[int]) -> Any:
    """A `NeighborLoader` that is spared the sorting of the edges."""
    return NeighborLoader(
        data,
        num_neighbors=num_neighbors,
        input_nodes=nodes,
        batch_size=spec.batch_size,
        shuffle=spec.stage != "inference",
        drop_last=True,
        num_workers=spec.loader_workers,
        persistent_workers=spec.loader_workers > 0,
        is_sorted=True,
    )


def endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def sample(turns: Turns, data: Data, nodes: Tensor) -> None:
    """`sampling`: batches without features, by loader processes or on threads."""
    spec = turns.spec
    del data.x, data.y
    batches = loader(data, spec, nodes, spec.fan_outs)
    if spec.loader_workers:
        pulled = endless(batches)
        turns.take(lambda: num_edges(next(pulled)), lead_in(spec))
        return
    generator = torch.Generator().manual_seed(0)

    def draw(seeds: Tensor) -> int:
        drawn = batches.node_sampler.sample_from_nodes(NodeSamplerInput(None, seeds))
        return int(drawn.row.numel())

    with ThreadPoolExecutor(spec.threads) as pool:
        for number in turns:
            order = torch.split(torch.randperm(len(nodes), generator=generator), spec.batch_size)
            seeds = [nodes[order[i % (len(order) - 1)]] for i in range(number)]
            began = time.perf_counter()
            edges = sum(pool.map(draw, seeds))
            turns.report(number, time.perf_counter() - began, edges)


def gather(turns: Turns, data: Data, nodes: Tensor) -> None:
    """`gather`: the loader as it is."""
    pulled = endless(loader(data, turns.spec, nodes, turns.spec.fan_outs))
    turns.take(lambda: num_edges(next(pulled)), lead_in(turns.spec))


def train(turns: Turns, data: Data, nodes: Tensor) -> None:
    """`step`: wait for a batch, forward, backward, Adam."""
    spec = turns.spec
    model = SAGE(data.num_features, spec.hidden, spec.num_classes, len(spec.fan_outs))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pulled = endless(loader(data, spec, nodes, spec.fan_outs))

    def step() -> int:
        batch = next(pulled)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
            hops = hops_of(batch, len(spec.fan_outs)) if spec.variant == "pyg-trimmed" else None
            out = model(batch.x, batch.edge_index, hops)[: batch.batch_size]
        torch.autograd.backward(F.cross_entropy(out.float(), batch.y[: batch.batch_size]))
        optimizer.step()
        return num_edges(batch)

    turns.take(step, lead_in(spec))


@torch.no_grad()
def infer(turns: Turns, data: Data, _nodes: Tensor) -> None:
    """`inference`: a random sample of the batches of a pass, as many of every layer."""
    spec = turns.spec
    model = SAGE(data.num_features, spec.hidden, spec.num_classes, len(spec.fan_outs)).eval()
    num_batches = data.num_nodes // spec.batch_size
    order = torch.randperm(num_batches, generator=torch.Generator().manual_seed(0))
    nodes = order.unsqueeze(1) * spec.batch_size + torch.arange(spec.batch_size)
    inputs = [data.x, *(torch.rand(data.num_nodes, spec.hidden) for _ in model.convs[1:])]
    del data.x, data.y
    pulled = endless(loader(data, spec, nodes.flatten(), [-1]))

    def layer(i: int) -> int:
        batch = next(pulled)
        x = model.convs[i](inputs[i][batch.n_id], batch.edge_index)
        model.layer(i, x)[: batch.batch_size]
        return num_edges(batch)

    share = spec.batch_size / data.num_nodes
    layers = range(len(inputs))
    turns.take(lambda: sum(layer(i) for i in layers), lead_in(spec), share)


def hops_of(batch: Data, num_hops: int) -> Hops:
    """What `trim_to_layer` wants; worked out of the edges where the backend does not tell."""
    if batch.get("num_sampled_nodes") is not None:
        return batch.num_sampled_nodes, batch.num_sampled_edges
    # Edges come by destination, and nodes are numbered as they are found.
    sources, destinations = batch.edge_index
    known, walked = [batch.batch_size], [0]
    for _ in range(num_hops):
        end = int(torch.searchsorted(destinations, known[-1]))
        new = sources[walked[-1] : end]
        known.append(max(known[-1], int(new.max()) + 1) if len(new) else known[-1])
        walked.append(end)
    return [known[0], *np.diff(known).tolist()], np.diff(walked).tolist()


def num_edges(batch: Data) -> int:
    return int(batch.edge_index.shape[1])


def lead_in(spec: Spec) -> int:
    """Batches that the loader's processes have made ready between two turns: two each."""
    return 2 * spec.loader_workers


STAGES = {"sampling": sample, "gather": gather, "step": train, "inference": infer}


def run(turns: Turns) -> None:
    spec = turns.spec
    typing = torch_geometric.typing
    if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        turns.absent("neither pyg-lib nor torch-sparse can be imported")
        return
    torch.set_num_threads(spec.threads)
    torch.manual_seed(0)
    store = Path(spec.store)
    data = load(store)
    nodes = torch.from_numpy(np.load(store / "split_train.npy"))
    backend = "pyg-lib" if typing.WITH_PYG_LIB else "torch-sparse"
    if spec.stage == "sampling" and not spec.loader_workers:
        how = "one batch a thread"
    else:
        how = f"NeighborLoader(num_workers={spec.loader_workers})"
    turns.ready(f"{backend}, {how}", versions(backend))
    STAGES[spec.stage](turns, data, nodes)


def versions(backend: str) -> dict[str, str]:
    module = __import__(backend.replace("-", "_"))
    return {
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        backend: module.__version__,
    }


if __name__ == "__main__":
    compete(run)
