"""Stock PyG: its `NeighborLoader` over pyg-lib or torch-sparse, with `SAGEConv`s or an R-GCN.

On a homogeneous graph variant `pyg` computes every layer for all sampled nodes, as in PyG's own
examples; `pyg-trimmed` drops what a layer no longer needs with `trim_to_layer`. Inference is the
layer-wise way of PyG's `reddit.py`: a `NeighborLoader` over all in-neighbours, a layer at a time.
On a typed graph batches are loaded as in PyG's `hetero/to_hetero_mag.py`; the model is OGB's and
GraphBolt's R-GCN for ogbn-mag, by `HeteroConv`: a mean and a weight a relation, a root weight a
node type, embeddings for the types without features, updated by SparseAdam.

Imports nothing of gnntrain: it runs in any environment that has PyG and a sampling backend.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric
import torch_geometric.typing
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.utils import trim_to_layer

from scripts.bench.peers.arrays import Arrays
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


class RGCN(nn.Module):
    """R-GCN with embedding tables."""

    def __init__(self, spec: Spec, arrays: Arrays) -> None:
        super().__init__()
        width, self.embeddings = arrays.width, arrays.embeddings(sparse=True)
        self.convs, self.roots = nn.ModuleList(), nn.ModuleList()
        for before, after in ((width, spec.hidden), (spec.hidden, spec.num_classes)):
            convs = {
                name: SAGEConv((before, before), after, root_weight=False, bias=False)
                for name in arrays.edges
            }
            self.convs.append(HeteroConv(convs, aggr="sum"))
            self.roots.append(
                nn.ModuleDict({name: nn.Linear(before, after) for name in arrays.num_nodes})
            )

    def forward(self, batch: HeteroData) -> dict[str, Tensor]:
        """Rows of all nodes by type."""
        h = {name: batch[name].x for name in batch.node_types if "x" in batch[name]}
        h |= {name: table(batch[name].n_id) for name, table in self.embeddings.items()}
        for i, conv in enumerate(self.convs):
            roots: Any = self.roots[i]
            sums = conv(h, batch.edge_index_dict)
            h = {name: rows + roots[name](h[name]) for name, rows in sums.items()}
            if i == 0:
                h = {name: F.dropout(F.relu(rows), 0.5) for name, rows in h.items()}
        return h


class Peer:
    """A graph, loaded, and what the stages share."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.spec = turns, turns.spec
        self.arrays = arrays = Arrays.of(self.spec)
        self.is_typed = self.spec.types is not None
        self.target = arrays.target if self.is_typed else None
        # As PyG wants them: a COO `edge_index` in int64, sorted by column.
        if self.is_typed:
            self.data: Any = HeteroData()
            for name, size in arrays.num_nodes.items():
                self.data[name].num_nodes = size
                if name in arrays.features:
                    self.data[name].x = arrays.features[name]
            self.data[arrays.target].y = arrays.labels
            for edge_type, edges in arrays.edges.items():
                self.data[edge_type].edge_index = coo(*edges)
        else:
            self.data = Data(
                x=arrays.features[arrays.target],
                y=arrays.labels,
                edge_index=coo(*next(iter(arrays.edges.values()))),
                num_nodes=arrays.num_nodes[arrays.target],
            )

    @property
    def lead_in(self) -> int:
        """Batches that the loader's processes have made ready between two turns: two each."""
        return 2 * self.spec.loader_workers

    def loader(self, nodes: Tensor, num_neighbors: list[int]) -> Any:
        """A `NeighborLoader` that is spared the sorting of the edges."""
        spec = self.spec
        return NeighborLoader(
            self.data,
            num_neighbors=num_neighbors,
            input_nodes=(self.target, nodes) if self.is_typed else nodes,
            batch_size=spec.batch_size,
            shuffle=spec.stage != "inference",
            drop_last=True,
            num_workers=spec.loader_workers,
            persistent_workers=spec.loader_workers > 0,
            is_sorted=True,
        )

    def without_rows(self) -> None:
        """Batches then have no features and no labels."""
        for nodes in self.data.node_stores:
            nodes.pop("x", None)
            nodes.pop("y", None)

    def model(self) -> nn.Module:
        spec, arrays = self.spec, self.arrays
        if self.is_typed:
            return RGCN(spec, arrays)
        return SAGE(arrays.width, spec.hidden, spec.num_classes, len(spec.fan_outs))

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """Of the target type; the seed nodes come first."""
        if self.is_typed:
            rows: Tensor = model(batch)[self.target]
            return rows
        trimmed = self.spec.variant == "pyg-trimmed"
        hops = hops_of(batch, len(self.spec.fan_outs)) if trimmed else None
        return model(batch.x, batch.edge_index, hops)  # type: ignore[no-any-return]


def coo(indptr: Tensor, indices: Tensor) -> Tensor:
    degrees = indptr.diff()
    edge_index = torch.empty(2, len(indices), dtype=torch.int64)
    edge_index[0] = indices
    start = 0
    # A copy of the whole would be a peak.
    for columns in torch.split(torch.arange(len(degrees)), 2**18):
        part = columns.repeat_interleave(degrees[columns])
        edge_index[1, start : start + len(part)] = part
        start += len(part)
    return edge_index


def endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def sample(peer: Peer) -> None:
    """`sampling`: batches without features, by loader processes or on threads."""
    turns, spec, train = peer.turns, peer.spec, peer.arrays.train
    peer.without_rows()
    batches = peer.loader(train, spec.fan_outs)
    if spec.loader_workers:
        pulled = endless(batches)
        turns.take(lambda: num_edges(next(pulled)), peer.lead_in)
        return
    generator = torch.Generator().manual_seed(0)

    def draw(seeds: Tensor) -> int:
        given = NodeSamplerInput(None, seeds, input_type=peer.target)
        row = batches.node_sampler.sample_from_nodes(given).row
        rows = row.values() if isinstance(row, dict) else [row]
        return sum(int(one.numel()) for one in rows if one is not None)

    with ThreadPoolExecutor(spec.threads) as pool:
        for number in turns:
            order = torch.split(torch.randperm(len(train), generator=generator), spec.batch_size)
            seeds = [train[order[i % (len(order) - 1)]] for i in range(number)]
            began = time.perf_counter()
            edges = sum(pool.map(draw, seeds))
            turns.report(number, time.perf_counter() - began, edges)


def gather(peer: Peer) -> None:
    """`gather`: the loader as it is."""
    pulled = endless(peer.loader(peer.arrays.train, peer.spec.fan_outs))
    peer.turns.take(lambda: num_edges(next(pulled)), peer.lead_in)


def train(peer: Peer) -> None:
    """`step`: wait for a batch, forward, backward, Adam; SparseAdam for tables."""
    spec, model = peer.spec, peer.model()
    tables = [*model.embeddings.parameters()] if isinstance(model, RGCN) else []
    others = [w for w in model.parameters() if not any(w is table for table in tables)]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(others, lr=0.01)]
    if tables:
        optimizers.append(torch.optim.SparseAdam(tables, lr=0.01))
    pulled = endless(peer.loader(peer.arrays.train, spec.fan_outs))

    def step() -> int:
        batch = next(pulled)
        seeds = batch[peer.target] if peer.is_typed else batch
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
            out = peer.outputs(model, batch)[: seeds.batch_size]
        torch.autograd.backward(F.cross_entropy(out.float(), seeds.y[: seeds.batch_size]))
        for optimizer in optimizers:
            optimizer.step()
        return num_edges(batch)

    peer.turns.take(step, peer.lead_in)


@torch.no_grad()
def infer(peer: Peer) -> None:
    """`inference`: a random sample of the batches of a pass, as many of every layer."""
    spec, data, model = peer.spec, peer.data, peer.model().eval()
    assert isinstance(model, SAGE)
    num_batches = data.num_nodes // spec.batch_size
    order = torch.randperm(num_batches, generator=torch.Generator().manual_seed(0))
    nodes = order.unsqueeze(1) * spec.batch_size + torch.arange(spec.batch_size)
    inputs = [data.x, *(torch.rand(data.num_nodes, spec.hidden) for _ in model.convs[1:])]
    share = spec.batch_size / data.num_nodes
    peer.without_rows()
    pulled = endless(peer.loader(nodes.flatten(), [-1]))

    def layer(i: int) -> int:
        batch = next(pulled)
        x = model.convs[i](inputs[i][batch.n_id], batch.edge_index)
        model.layer(i, x)[: batch.batch_size]
        return num_edges(batch)

    layers = range(len(inputs))
    peer.turns.take(lambda: sum(layer(i) for i in layers), peer.lead_in, share)


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


def num_edges(batch: Any) -> int:
    return sum(int(edges.edge_index.shape[1]) for edges in batch.edge_stores)


STAGES = {"sampling": sample, "gather": gather, "step": train, "inference": infer}


def run(turns: Turns) -> None:
    spec = turns.spec
    typing = torch_geometric.typing
    if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        turns.absent("neither pyg-lib nor torch-sparse can be imported")
        return
    torch.set_num_threads(spec.threads)
    torch.manual_seed(0)
    peer = Peer(turns)
    backend = "pyg-lib" if typing.WITH_PYG_LIB else "torch-sparse"
    is_threaded = spec.stage == "sampling" and not spec.loader_workers
    how = f"NeighborLoader(num_workers={spec.loader_workers})"
    versions = {
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        backend: __import__(backend.replace("-", "_")).__version__,
    }
    turns.ready(f"{backend}, {'one batch a thread' if is_threaded else how}", versions)
    STAGES[spec.stage](peer)


if __name__ == "__main__":
    compete(run)
