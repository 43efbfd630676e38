"""The scaffold that all models share: how layers follow one another, and how one layer is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm, LayerNorm

from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate_linear import AggregateLinear, autocast_type
from gnntrain.models.dropout import Dropout
from gnntrain.sampling.block import Block

Norm = Literal["none", "batch", "layer"]
Activation = Literal["relu", "elu", "gelu", "leaky_relu", "none"]
JumpingKnowledge = Literal["none", "cat", "max"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "none": nn.Identity,
}

MakeConv = Callable[[int, int, bool], nn.Module]
"""(width in, width out, whether it gives the model's outputs) → convolution."""


class Scaffold(TypedDict, total=False):
    """The options that every model takes, see `GNN`."""

    hidden_channels: int
    num_layers: int
    dropout: float
    input_dropout: float
    norm: Norm
    activation: Activation
    residual: bool
    jk: JumpingKnowledge


class GNN(nn.Module):
    """A stack of graph convolutions, computed block by block or layer by layer.

    Layer i is three stages, each over rows or over edges, so that a chunk of rows at a time can
    pass through them and no stage is repeated for a node:

    - `transform(i, h)`: what a node sends, from its own row alone (attention multiplies
      first; SAGE and GCN do so where that narrows the rows);
    - `combine(i, z, h_dst, z_dst, block)`: the aggregation over a block's edges, and what belongs
      to the destination itself;
    - `finish(i, out, h_dst)`: norm, activation, residual, dropout of the destination's row.

    Before the first layer comes `start(x)`, by row too. The read-out is a running one: the
    rows of every layer go into `readout_add` as soon as they are there, and `readout` makes the
    outputs of what was gathered. Exact inference for all N nodes is then

        h = start(x); state = readout_start(N)
        for each layer i:
            z = transform(i, h)                               # by chunks of rows
            for each range [a, b) of destinations, its block with num_src = N, dst_offset = a:
                out = combine(i, z, h[a:b], z[a:b], block)
                new[a:b] = finish(i, out, h[a:b])
                state[a:b] = readout_add(i, state[a:b], new[a:b])
            h = new
        outputs = readout(state if state_channels else h)     # by chunks of rows

    The parameters have the names of PyG's `BasicGNN` (`convs.0.lin_l.weight`, `norms.0.…`,
    `lin.weight`) and the convolutions are PyG's own, as holders of the parameters: the weights
    load into a plain PyG model wherever that has the same architecture.

    Args:
        make_conv: Makes a layer's convolution.
        in_channels: Width of the input rows.
        out_channels: Width of the outputs (logits).
        hidden_channels: Width between layers.
        num_layers: Number of convolutions, at least 1.
        dropout: Probability, after every layer but the one that gives the outputs.
        input_dropout: Probability, on the input rows.
        norm: "batch" or "layer" normalisation after every convolution but the one that gives the
            outputs.
        activation: After the normalisation.
        residual: Add a layer's input to its output after the activation, through a linear map
            where the widths differ.
        jk: Jumping knowledge (Xu et al., 2018): "cat" or "max" over the rows of all layers, which
            are then all `hidden_channels` wide, and a linear map `lin` to the outputs.

    Attributes:
        config_defaults: Shared options whose default in a configuration is the model's own.
        uses_graph: Whether edges matter at all.
        uses_norm: Whether blocks must carry `norm`.
        uses_weight: Whether a block's `weight` is taken into account.
        aggregates_rows: Whether the first layer's input may be stored rows.
        uses_degree: Whether sums are rescaled by `degree` when in-edges were left out.
        state_channels: Width of the running read-out's state; 0: it keeps none.
    """

    config_defaults: ClassVar[Scaffold] = {}
    uses_graph = True
    uses_norm = False
    uses_weight = False
    uses_degree = False
    aggregates_rows = False

    def __init__(
        self,
        make_conv: MakeConv,
        in_channels: int,
        out_channels: int,
        *,
        hidden_channels: int = 128,
        num_layers: int = 2,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        norm: Norm = "none",
        activation: Activation = "relu",
        residual: bool = False,
        jk: JumpingKnowledge = "none",
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.hidden_channels, self.num_layers, self.jk = hidden_channels, num_layers, jk
        self.state_channels = {"none": 0, "cat": out_channels, "max": hidden_channels}[jk]
        last = out_channels if jk == "none" else hidden_channels
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), last]

        self.convs, self.norms, self.residuals = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for i, (before, after) in enumerate(pairwise(widths)):
            is_output = self._is_output(i)
            self.convs.append(make_conv(before, after, is_output))
            self.norms.append(nn.Identity() if is_output else _make_norm(norm, after))
            if residual:
                same = before == after
                self.residuals.append(nn.Identity() if same else nn.Linear(before, after))
        self.act = ACTIVATIONS[activation]()
        self.dropout, self.input_dropout = Dropout(dropout), Dropout(input_dropout)
        if jk != "none":
            num_parts = num_layers if jk == "cat" else 1
            self.lin = nn.Linear(num_parts * hidden_channels, out_channels)

    def forward(self, x: Tensor | LazyFeatures, blocks: Sequence[Block]) -> Tensor:
        """Compute the outputs of the seeds, the destinations of the last block.

        Args:
            x: `[blocks[0].num_src, in_channels]`, float, or named rows of the store.
            blocks: One a layer, the innermost first; the destinations of each are the sources of
                the next (`dst_offset` 0).

        Returns:
            float `[blocks[-1].num_dst, out_channels]`.
        """
        if len(blocks) != self.num_layers:
            raise ValueError(f"{len(blocks)} blocks for {self.num_layers} layers")
        num_seeds = blocks[-1].num_dst
        h = x if isinstance(x, LazyFeatures) and self.reads_rows else self.start(_in_memory(x))
        state = self.readout_start(num_seeds)
        for i, block in enumerate(blocks):
            h = self.layer(i, h, block)
            state = self.readout_add(i, state, h[:num_seeds])
        assert isinstance(h, Tensor)
        return self.readout(state if self.state_channels else h)

    @property
    def reads_rows(self) -> bool:
        """Whether the first layer can read its input's rows where they are stored."""
        changes_rows = self.training and self.input_dropout.p > 0
        weight = next(self.parameters())
        return self.aggregates_rows and weight.dtype == torch.float32 and not changes_rows

    def layer(self, i: int, h: Tensor | LazyFeatures, block: Block) -> Tensor:
        """The rows that leave layer `i` for the destinations of `block`, of its sources' `h`.

        Where a layer's aggregation is linear it may come before or after a product. Before, it
        takes a product for each destination only; after, one for each source, but of rows that may
        be narrower.
        """
        linear = self.linear(i, block)
        is_narrower = self.has_transform(i) and block.num_src <= 2 * block.num_dst
        if linear is not None and (isinstance(h, LazyFeatures) or not is_narrower):
            return self._linear_layer(i, linear, h, block)
        if isinstance(h, LazyFeatures) and self.has_transform(i):
            h = self.start(_in_memory(h))
        h_dst = _destinations(h, block)
        if not self.has_transform(i):
            return self.finish(i, self.combine(i, h, h_dst, h_dst, block), h_dst)
        assert isinstance(h, Tensor)
        z = self.transform(i, h)
        return self.finish(i, self.combine(i, z, h_dst, _destinations(z, block), block), h_dst)

    def _linear_layer(
        self, i: int, linear: AggregateLinear, h: Tensor | LazyFeatures, block: Block
    ) -> Tensor:
        is_plain = isinstance(self.norms[i], nn.Identity) and isinstance(self.act, nn.ReLU)
        if is_plain and not self.residuals and not self._is_output(i):
            return linear(h, self.dropout.p if self.training else 0.0)
        out = linear(h, None)
        return self.finish(i, out, _destinations(h, block) if self.residuals else out)

    def linear(self, i: int, block: Block) -> AggregateLinear | None:  # noqa: ARG002
        """What layer `i` computes before its norm, if that is one product with an aggregate."""
        return None

    def start(self, x: Tensor) -> Tensor:
        """What the first layer gets: `x` in the weights' type (but under autocast), dropped out."""
        if not torch.is_autocast_enabled(x.device.type):
            x = x.to(next(self.parameters()).dtype)
        dropped: Tensor = self.input_dropout(x)
        return dropped

    def conv(self, i: int) -> Any:
        """Layer `i`'s convolution (of PyG, which has no types)."""
        return self.convs[i]

    def has_transform(self, i: int) -> bool:  # noqa: ARG002
        """Whether `transform(i, h)` is anything but `h` itself."""
        return False

    def transform(self, i: int, h: Tensor) -> Tensor:  # noqa: ARG002
        """What layer `i` aggregates: `[rows, width of h]` → `[rows, any width]`."""
        return h

    def combine(
        self, i: int, z: Tensor | LazyFeatures, h_dst: Tensor, z_dst: Tensor, block: Block
    ) -> Tensor:
        """Aggregate over the block's edges.

        Args:
            i: The layer.
            z: `[num_src, …]`, from `transform`; without one the layer's input, perhaps stored rows.
            h_dst: `[num_dst, …]`, the layer's input for the destinations.
            z_dst: `[num_dst, …]`, the destinations' rows of `z`.
            block: The edges.

        Returns:
            `[num_dst, width of the layer]`.
        """
        raise NotImplementedError

    def finish(self, i: int, out: Tensor, h_dst: Tensor) -> Tensor:
        """The rows that leave layer `i`, from `combine`'s and from the layer's input."""
        is_output = self._is_output(i)
        if not is_output:
            out = self.act(self.norms[i](out))
        if self.residuals:
            out = out + self.residuals[i](h_dst)
        return out if is_output else self.dropout(out)

    def readout_start(self, num_rows: int) -> Tensor:
        """The read-out's state before the first layer, `[num_rows, state_channels]`."""
        parameter = next(self.parameters())
        fill = -torch.inf if self.jk == "max" else 0.0
        return parameter.new_full((num_rows, self.state_channels), fill)

    def readout_add(self, i: int, state: Tensor, h: Tensor) -> Tensor:
        """The state once the rows `h` `[rows, …]` that leave layer `i` are added."""
        if self.jk == "max":
            return torch.maximum(state, h)
        if self.jk == "cat":  # lin(h_0 ‖ h_1 ‖ …) is a sum with one part of the weights a layer
            part = slice(i * h.shape[1], (i + 1) * h.shape[1])
            return state + F.linear(h, self.lin.weight[:, part])
        return state

    def readout(self, rows: Tensor) -> Tensor:
        """The outputs, of the final state, or, without state, of the last layer's rows."""
        if self.jk == "cat":
            return rows + self.lin.bias
        if self.jk == "max":
            logits: Tensor = self.lin(rows)
            return logits
        return rows

    @property
    def embedding_channels(self) -> int:
        """Width of the rows that enter the last layer: the last convolution, or `lin` with `jk`."""
        if self.jk == "none":
            return self.in_channels if self.num_layers == 1 else self.hidden_channels
        return self.hidden_channels * (self.num_layers if self.jk == "cat" else 1)

    def put_embeddings(self, i: int, h: Tensor, state: Tensor, out: Tensor) -> None:
        """With `jk`: write what enters `lin` of the rows `h` that leave layer `i` to `out`.

        Args:
            i: The layer.
            h: `[rows, hidden_channels]`.
            state: The running read-out, `h` included.
            out: `[rows, embedding_channels]`, whole after the last layer.
        """
        if self.jk == "cat":
            out[:, i * h.shape[1] : (i + 1) * h.shape[1]] = h
        elif i == self.num_layers - 1:
            out[:] = state

    def _is_output(self, i: int) -> bool:
        return i == self.num_layers - 1 and self.jk == "none"


def _in_memory(x: Tensor | LazyFeatures) -> Tensor:
    if isinstance(x, LazyFeatures):  # a product would convert them to what autocast computes in
        return x.whole(autocast_type(x.device, torch.float32))
    return x


def _destinations(rows: Tensor | LazyFeatures, block: Block) -> Tensor:
    """The rows of the block's destinations among those of its sources."""
    start, stop = block.dst_offset, block.dst_offset + block.num_dst
    return rows.read(start, stop) if isinstance(rows, LazyFeatures) else rows[start:stop]


def narrows(before: int, after: int) -> bool:
    """Whether a linear map is better applied before a (linear) aggregation than after it.

    Before, the aggregation is as wide as the smaller side.
    """
    return before > after


def _make_norm(norm: Norm, channels: int) -> nn.Module:
    if norm == "batch":
        # A batch of one row has no variance, one of none no mean: the running ones serve there.
        module: nn.Module = BatchNorm(channels, allow_single_element=True)
    elif norm == "layer":
        module = LayerNorm(channels, mode="node")
    else:
        module = nn.Identity()
    return module
