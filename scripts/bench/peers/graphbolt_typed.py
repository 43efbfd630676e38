"""DGL's GraphBolt and its R-GCN example for ogbn-mag.

`examples/graphbolt/rgcn/hetero_rgcn.py`: `HeteroGraphConv` of `GraphConv`s with weights of its own,
a loop weight a node type, embeddings as wide as the papers' features for the other types.

Variants: `graphbolt` updates the embeddings by Adam, as the example does; `graphbolt-sparse` by
SparseAdam: only the rows of the batch.

Imports nothing of gnntrain: DGL 2.1 wants torch 2.2, so it has an environment of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.peers.turns import Spec, Turns, compete
from scripts.bench.peers.typed import Types


class RelGraphConvLayer(nn.Module):
    """As in DGL's example: the mean of each relation's neighbours, times its weight."""

    def __init__(self, in_size: int, out_size: int, types: Types) -> None:
        super().__init__()
        dgl = importlib.import_module("dgl.nn")
        relations = [relation for _, relation, _ in types.edge_types]
        self.conv = dgl.HeteroGraphConv(
            {
                name: dgl.GraphConv(in_size, out_size, norm="right", weight=False, bias=False)
                for name in relations
            }
        )
        self.weight = nn.ModuleDict(
            {name: nn.Linear(in_size, out_size, bias=False) for name in relations}
        )
        self.loop_weights = nn.ModuleDict(
            {name: nn.Linear(in_size, out_size) for name in types.num_nodes}
        )

    def forward(self, block: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the destinations by type."""
        block = block.local_var()
        weights = {name: {"weight": layer.weight.T} for name, layer in self.weight.items()}
        own = {name: rows[: block.number_of_dst_nodes(name)] for name, rows in inputs.items()}
        found = self.conv(block, inputs, mod_kwargs=weights)
        return {name: rows + self.loop_weights[name](own[name]) for name, rows in found.items()}


class RGCN(nn.Module):
    """The example's `EntityClassify` with its embedding tables."""

    def __init__(self, spec: Spec, types: Types, *, sparse: bool) -> None:
        super().__init__()
        (width,) = {rows.shape[1] for rows in types.features.values()}
        self.embeddings = nn.ModuleDict(
            {
                name: nn.Embedding(size, width, sparse=sparse)
                for name, size in types.num_nodes.items()
                if name not in types.features
            }
        )
        for weight in self.embeddings.parameters():
            nn.init.xavier_uniform_(weight)
        self.layers = nn.ModuleList(
            [
                RelGraphConvLayer(width, spec.hidden, types),
                RelGraphConvLayer(spec.hidden, spec.num_classes, types),
            ]
        )

    def forward(self, blocks: Any, x: dict[str, Tensor], n_id: dict[str, Tensor]) -> Any:
        """Rows of the seeds by type."""
        h = {name: table(n_id[name]) for name, table in self.embeddings.items()} | x
        h = {name: F.relu(rows) for name, rows in self.layers[0](blocks[0], h).items()}
        h = {name: F.dropout(rows, 0.5, self.training) for name, rows in h.items()}
        return self.layers[1](blocks[1], h)


class Batches:
    """GraphBolt's pipeline over a store's arrays: endless mini-batches."""

    def __init__(self, spec: Spec) -> None:
        self._gb: Any = importlib.import_module("dgl.graphbolt")
        self._spec = spec
        self.types = Types.of(spec)
        self._graph = self._fused()

    def _fused(self) -> Any:
        """The graph as GraphBolt wants it: nodes of a type in a range, the in-edges of a node by
        edge type, numbers in int32, which is faster."""
        types = self.types
        names = list(types.num_nodes)
        offsets = torch.tensor([0, *types.num_nodes.values()]).cumsum(0)
        first = dict(zip(names, offsets.tolist(), strict=False))
        sources, keys = [], []
        for number, ((src, _, dst), (indptr, indices)) in enumerate(types.edges.items()):
            nodes = torch.arange(len(indptr) - 1).repeat_interleave(indptr.diff()) + first[dst]
            keys.append(nodes * len(types.edges) + number)
            sources.append((indices + first[src]).int())
        key, order = torch.cat(keys).sort(stable=True)
        degrees = torch.bincount(key // len(types.edges), minlength=int(offsets[-1]))
        return self._gb.fused_csc_sampling_graph(
            torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)]),
            torch.cat(sources)[order],
            node_type_offset=offsets.int(),
            type_per_edge=(key % len(types.edges)).to(torch.uint8),
            node_type_to_id={name: i for i, name in enumerate(names)},
            edge_type_to_id={":".join(name): i for i, name in enumerate(types.edges)},
        )

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader()
        while True:
            yield from loader

    def _loader(self) -> Any:
        gb, spec, types = self._gb, self._spec, self.types
        seeds = types.train.int(), types.labels[types.train]
        items = gb.ItemSetDict({types.target: gb.ItemSet(seeds, names=("seed_nodes", "labels"))})
        pipe = gb.ItemSampler(items, batch_size=spec.batch_size, shuffle=True, drop_last=True)
        # GraphBolt counts layers from the input on: the seed nodes draw the last fan-out.
        fan_outs = [torch.full((len(types.edges),), number) for number in spec.fan_outs[::-1]]
        pipe = pipe.sample_neighbor(self._graph, fan_outs)
        rows = {
            ("node", name, "feat"): gb.TorchBasedFeature(x) for name, x in types.features.items()
        }
        # Its place in the pipeline is where loader processes end, so it is there in any case.
        wanted = {} if spec.stage == "sampling" else {name: ["feat"] for name in types.features}
        pipe = pipe.fetch_feature(gb.BasicFeatureStore(rows), node_feature_keys=wanted)
        return gb.DataLoader(pipe, num_workers=spec.loader_workers)


def num_edges(batch: Any) -> int:
    return sum(
        int(csc.indices.numel())
        for hop in batch.sampled_subgraphs
        for csc in hop.sampled_csc.values()
    )


def trainer(spec: Spec, batches: Batches) -> Any:
    """A function that takes one training step and returns the number of edges."""
    types, sparse = batches.types, spec.variant == "graphbolt-sparse"
    nid = importlib.import_module("dgl").NID
    model = RGCN(spec, types, sparse=sparse)
    kind = torch.optim.SparseAdam if sparse else torch.optim.Adam
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(model.layers.parameters(), lr=0.01),
        kind(list(model.embeddings.parameters()), lr=0.01),
    ]
    pulled = iter(batches)

    def step() -> int:
        batch = next(pulled)
        x = {name: batch.node_features[name, "feat"] for name in types.features}
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
            out = model(batch.blocks, x, batch.blocks[0].srcdata[nid])[types.target]
        torch.autograd.backward(F.cross_entropy(out.float(), batch.labels[types.target]))
        for optimizer in optimizers:
            optimizer.step()
        return num_edges(batch)

    return step


def run(turns: Turns) -> None:
    spec = turns.spec
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
