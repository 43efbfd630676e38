"""DGL's GraphBolt, with models over blocks as in DGL's own examples.

On a homogeneous graph `examples/graphbolt/node_classification.py`: `dgl.nn.SAGEConv`, node numbers
in int32, which is faster. On a typed one `examples/graphbolt/rgcn/hetero_rgcn.py` for ogbn-mag:
`HeteroGraphConv` of `GraphConv`s with weights of its own, a loop weight a node type, embeddings as
wide as the papers' features for the other types; `graphbolt` updates these by Adam, as the example
does, `graphbolt-sparse` by SparseAdam: only the rows of the batch.

Imports nothing of gnntrain: DGL 2.1 wants torch 2.2, so it has an environment of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.peers.arrays import Arrays
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


class RelGraphConvLayer(nn.Module):
    """As in DGL's example: the mean of each relation's neighbours, times its weight."""

    def __init__(self, in_size: int, out_size: int, arrays: Arrays) -> None:
        super().__init__()
        dgl = importlib.import_module("dgl.nn")
        relations = [relation for _, relation, _ in arrays.edges]
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
            {name: nn.Linear(in_size, out_size) for name in arrays.num_nodes}
        )

    def forward(self, block: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the destinations by type."""
        block = block.local_var()
        weights = {name: {"weight": layer.weight.T} for name, layer in self.weight.items()}
        own = {name: rows[: block.number_of_dst_nodes(name)] for name, rows in inputs.items()}
        sums = self.conv(block, inputs, mod_kwargs=weights)
        return {name: rows + self.loop_weights[name](own[name]) for name, rows in sums.items()}


class RGCN(nn.Module):
    """The example's `EntityClassify` with its embedding tables."""

    def __init__(self, spec: Spec, arrays: Arrays, *, sparse: bool) -> None:
        super().__init__()
        width, self.embeddings = arrays.width, arrays.embeddings(sparse=sparse)
        self.layers = nn.ModuleList(
            [
                RelGraphConvLayer(width, spec.hidden, arrays),
                RelGraphConvLayer(spec.hidden, spec.num_classes, arrays),
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
        self.is_typed = spec.types is not None
        self.arrays = Arrays.of(spec)
        ((indptr, indices), *_) = self.arrays.edges.values()
        build = self._gb.fused_csc_sampling_graph
        self._graph = self._fused() if self.is_typed else build(indptr, indices)
        self._index_type = torch.int32 if self.is_typed else indices.dtype

    def _fused(self) -> Any:
        """The graph as GraphBolt wants it: nodes of a type in a range, the in-edges of a node by
        edge type, numbers in int32, which is faster."""
        arrays = self.arrays
        names = list(arrays.num_nodes)
        offsets = torch.tensor([0, *arrays.num_nodes.values()]).cumsum(0)
        first = dict(zip(names, offsets.tolist(), strict=False))
        sources, keys = [], []
        for number, ((src, _, dst), (indptr, indices)) in enumerate(arrays.edges.items()):
            nodes = torch.arange(len(indptr) - 1).repeat_interleave(indptr.diff()) + first[dst]
            keys.append(nodes * len(arrays.edges) + number)
            sources.append((indices + first[src]).int())
        key, order = torch.cat(keys).sort(stable=True)
        degrees = torch.bincount(key // len(arrays.edges), minlength=int(offsets[-1]))
        return self._gb.fused_csc_sampling_graph(
            torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)]),
            torch.cat(sources)[order],
            node_type_offset=offsets.int(),
            type_per_edge=(key % len(arrays.edges)).to(torch.uint8),
            node_type_to_id={name: i for i, name in enumerate(names)},
            edge_type_to_id={":".join(name): i for i, name in enumerate(arrays.edges)},
        )

    def __iter__(self) -> Iterator[Any]:
        gb, spec, arrays = self._gb, self._spec, self.arrays
        seeds = arrays.train.to(self._index_type), arrays.labels[arrays.train]
        items = gb.ItemSet(seeds, names=("seed_nodes", "labels"))
        # GraphBolt counts layers from the input on: the seed nodes draw the last fan-out.
        fan_outs: list[Any] = spec.fan_outs[::-1]
        if self.is_typed:
            items = gb.ItemSetDict({arrays.target: items})
            fan_outs = [torch.full((len(arrays.edges),), number) for number in fan_outs]
        pipe = gb.ItemSampler(items, batch_size=spec.batch_size, shuffle=True, drop_last=True)
        pipe = pipe.sample_neighbor(self._graph, fan_outs)
        rows = {
            ("node", name if self.is_typed else None, "feat"): gb.TorchBasedFeature(x)
            for name, x in arrays.features.items()
        }
        # Its place in the pipeline is where loader processes end, so it is there in any case.
        every: Any = {key: ["feat"] for key in arrays.features} if self.is_typed else ["feat"]
        wanted = type(every)() if spec.stage == "sampling" else every
        pipe = pipe.fetch_feature(gb.BasicFeatureStore(rows), node_feature_keys=wanted)
        loader = gb.DataLoader(pipe, num_workers=spec.loader_workers)
        while True:
            yield from loader

    def num_edges(self, batch: Any) -> int:
        hops = [hop.sampled_csc for hop in batch.sampled_subgraphs]
        each = [csc for hop in hops for csc in hop.values()] if self.is_typed else hops
        return sum(int(csc.indices.numel()) for csc in each)


def trainer(spec: Spec, batches: Batches) -> Any:
    """A function that takes one training step and returns the number of edges."""
    arrays, sparse = batches.arrays, spec.variant == "graphbolt-sparse"
    tables: list[nn.Parameter] = []
    if batches.is_typed:
        model: Any = RGCN(spec, arrays, sparse=sparse)
        tables = list(model.embeddings.parameters())
    else:
        model = SAGE(arrays.width, spec.hidden, spec.num_classes, len(spec.fan_outs))
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(model.layers.parameters(), lr=0.01)]
    if tables:
        kind = torch.optim.SparseAdam if sparse else torch.optim.Adam
        optimizers.append(kind(tables, lr=0.01))
    nid = importlib.import_module("dgl").NID
    pulled = iter(batches)

    def outputs(batch: Any) -> tuple[Tensor, Tensor]:
        """Logits and labels of the seeds."""
        if not batches.is_typed:
            return model(batch.blocks, batch.node_features["feat"]), batch.labels
        x = {name: batch.node_features[name, "feat"] for name in arrays.features}
        found = model(batch.blocks, x, batch.blocks[0].srcdata[nid])
        return found[arrays.target], batch.labels[arrays.target]

    def step() -> int:
        batch = next(pulled)
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
            logits, labels = outputs(batch)
        torch.autograd.backward(F.cross_entropy(logits.float(), labels))
        for optimizer in optimizers:
            optimizer.step()
        return batches.num_edges(batch)

    return step


def run(turns: Turns) -> None:
    spec = turns.spec
    torch.set_num_threads(spec.threads)
    torch.manual_seed(0)
    batches = Batches(spec)
    pulled = iter(batches)
    is_step = spec.stage == "step"
    step = trainer(spec, batches) if is_step else lambda: batches.num_edges(next(pulled))
    step()  # what cannot be computed at all shows here
    turns.ready(
        f"GraphBolt, DataLoader(num_workers={spec.loader_workers})",
        {"torch": torch.__version__, "dgl": importlib.import_module("dgl").__version__},
    )
    # Between two turns the loader's processes have made two batches ready each.
    turns.take(step, 2 * spec.loader_workers)


if __name__ == "__main__":
    compete(run)
