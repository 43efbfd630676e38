"""Stock PyG on a typed graph: its hetero `NeighborLoader` and R-GCN by `HeteroConv`.

As PyG's example `hetero/to_hetero_mag.py` loads batches; the model is that of OGB's and GraphBolt's
R-GCN for ogbn-mag: a mean a relation, a weight a relation, a root weight a node type, embeddings
for the types without features, updated by SparseAdam.

Imports nothing of gnntrain: it runs in any environment that has PyG and a sampling backend.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.typing
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.sampler import NodeSamplerInput

from scripts.bench.peers.pyg import endless, lead_in, versions
from scripts.bench.peers.turns import Spec, Turns, compete
from scripts.bench.peers.typed import Types


class RGCN(nn.Module):
    """R-GCN with embedding tables."""

    def __init__(self, spec: Spec, types: Types) -> None:
        super().__init__()
        (width,) = {rows.shape[1] for rows in types.features.values()}
        self.embeddings = nn.ModuleDict(
            {
                name: nn.Embedding(size, width, sparse=True)
                for name, size in types.num_nodes.items()
                if name not in types.features
            }
        )
        for weight in self.embeddings.parameters():
            nn.init.xavier_uniform_(weight)
        self.convs, self.roots = nn.ModuleList(), nn.ModuleList()
        for before, after in ((width, spec.hidden), (spec.hidden, spec.num_classes)):
            convs = {
                name: SAGEConv((before, before), after, root_weight=False, bias=False)
                for name in types.edge_types
            }
            self.convs.append(HeteroConv(convs, aggr="sum"))
            self.roots.append(
                nn.ModuleDict({name: nn.Linear(before, after) for name in types.num_nodes})
            )

    def forward(self, batch: HeteroData) -> dict[str, Tensor]:
        """Rows of all nodes by type."""
        h = {name: batch[name].x for name in batch.node_types if "x" in batch[name]}
        h |= {name: table(batch[name].n_id) for name, table in self.embeddings.items()}
        for i, conv in enumerate(self.convs):
            roots: Any = self.roots[i]
            found = conv(h, batch.edge_index_dict)
            h = {name: rows + roots[name](h[name]) for name, rows in found.items()}
            if i == 0:
                h = {name: F.dropout(F.relu(rows), 0.5) for name, rows in h.items()}
        return h


def load(types: Types) -> HeteroData:
    """The store's arrays as PyG wants them: a COO `edge_index` in int64, sorted by column."""
    data = HeteroData()
    for name, size in types.num_nodes.items():
        data[name].num_nodes = size
        if name in types.features:
            data[name].x = types.features[name]
    data[types.target].y = types.labels
    for edge_type, (indptr, indices) in types.edges.items():
        columns = torch.arange(len(indptr) - 1).repeat_interleave(indptr.diff())
        data[edge_type].edge_index = torch.stack([indices.long(), columns])
    return data


def loader(data: HeteroData, types: Types, spec: Spec) -> Any:
    """A `NeighborLoader` that is spared the sorting of the edges."""
    return NeighborLoader(
        data,
        num_neighbors=dict.fromkeys(types.edge_types, spec.fan_outs),
        input_nodes=(types.target, types.train),
        batch_size=spec.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=spec.loader_workers,
        persistent_workers=spec.loader_workers > 0,
        is_sorted=True,
    )


def sample(turns: Turns, data: HeteroData, types: Types) -> None:
    """`sampling`: the sampler alone, one batch a thread, or loader processes."""
    spec = turns.spec
    for name in types.features:
        del data[name].x
    batches = loader(data, types, spec)
    if spec.loader_workers:
        pulled = endless(batches)
        turns.take(lambda: num_edges(next(pulled)), lead_in(spec))
        return
    generator = torch.Generator().manual_seed(0)

    def draw(seeds: Tensor) -> int:
        given = NodeSamplerInput(None, seeds, input_type=types.target)
        drawn = batches.node_sampler.sample_from_nodes(given)
        return sum(int(row.numel()) for row in drawn.row.values() if row is not None)

    with ThreadPoolExecutor(spec.threads) as pool:
        for number in turns:
            order = torch.split(
                torch.randperm(len(types.train), generator=generator), spec.batch_size
            )
            seeds = [types.train[order[i % (len(order) - 1)]] for i in range(number)]
            began = time.perf_counter()
            edges = sum(pool.map(draw, seeds))
            turns.report(number, time.perf_counter() - began, edges)


def train(turns: Turns, data: HeteroData, types: Types) -> None:
    """`step`: wait for a batch, forward, backward, Adam and SparseAdam."""
    spec = turns.spec
    model = RGCN(spec, types)
    weights = [*model.convs.parameters(), *model.roots.parameters()]
    optimizers = [
        torch.optim.Adam(weights, lr=0.01),
        torch.optim.SparseAdam(list(model.embeddings.parameters()), lr=0.01),
    ]
    pulled = endless(loader(data, types, spec))

    def step() -> int:
        batch = next(pulled)
        size = batch[types.target].batch_size
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
            out = model(batch)[types.target][:size]
        torch.autograd.backward(F.cross_entropy(out.float(), batch[types.target].y[:size]))
        for optimizer in optimizers:
            optimizer.step()
        return num_edges(batch)

    turns.take(step, lead_in(spec))


def num_edges(batch: HeteroData) -> int:
    return sum(int(edges.shape[1]) for edges in batch.edge_index_dict.values())


STAGES = {"sampling": sample, "step": train}


def run(turns: Turns) -> None:
    spec = turns.spec
    typing = torch_geometric.typing
    if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        turns.absent("neither pyg-lib nor torch-sparse can be imported")
        return
    torch.set_num_threads(spec.threads)
    torch.manual_seed(0)
    types = Types.of(spec)
    data = load(types)
    backend = "pyg-lib" if typing.WITH_PYG_LIB else "torch-sparse"
    how = f"NeighborLoader(num_workers={spec.loader_workers})"
    turns.ready(f"{backend}, {how}", versions(backend))
    STAGES[spec.stage](turns, data, types)


if __name__ == "__main__":
    compete(run)
