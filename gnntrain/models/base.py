"""What all models share: the order of their layers, and the stages of one layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn.resolver import activation_resolver, normalization_resolver

from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate_linear import AggregateLinear, autocast_type
from gnntrain.models.conv import BlockConv
from gnntrain.models.dropout import Dropout
from gnntrain.models.plain import with_residuals
from gnntrain.models.pyg_model import PyGModel
from gnntrain.sampling.block import Block, BlockNeeds

Norm = Literal["none", "batch", "layer"]
Activation = Literal["relu", "elu", "gelu", "leaky_relu", "none"]
JumpingKnowledge = Literal["none", "cat", "max"]

_PYG_NORMS: dict[Norm, dict[str, Any]] = {
    "none": {"norm": None},
    # A batch of one row has no variance, an empty one no mean: use the running statistics.
    "batch": {"norm": "batch_norm", "norm_kwargs": {"allow_single_element": True}},
    "layer": {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}},
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

    A layer is a convolution (`BlockConv`), then norm, activation, residual and dropout (`update`).
    `start(x)` prepares the rows of the first layer. Jumping knowledge is computed layer by layer:
    `jk_update` adds the rows of a layer to a state, and `readout` turns the last state into
    outputs. Exact inference for all N nodes is then

        h, state = start(x), none
        for each layer i and its convolution:
            z = conv.transform(h)                                  # by chunks of rows
            for each range [a, b) of destinations, its block with num_src = N, dst_offset = a:
                new[a:b] = propagate(i, block, z, h[a:b], z[a:b])
                state[a:b] = jk_update(i, state[a:b], new[a:b])
            h = new
        outputs = readout(state)                                   # by chunks of rows

    The convolutions are subclasses of PyG's, and the parameters have the names of PyG's `BasicGNN`
    (`convs.0.lin_l.weight`, `norms.0.…`, `lin.weight`): the weights load into a plain PyG model of
    the same architecture, see `pyg_model`.

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
        activation: Applied after the normalisation.
        residual: Add a layer's input to its output after the activation, through a linear map
            where the widths differ.
        jk: Jumping knowledge (Xu et al., 2018): "cat" or "max" over the rows of all layers, which
            are then all `hidden_channels` wide, and a linear map `lin` to the outputs.

    Attributes:
        config_defaults: Shared options with another default for this model.
        uses_graph: Whether the model reads edges; also used by the checks of a configuration.
        is_hetero: Whether it computes on the blocks of typed graphs; likewise.
        jk_channels: Width of the state of `jk_update`; 0: no state.
        act_and_norm: `activation` and `norm` as arguments of PyG's models: `act`, `norm` and
            `norm_kwargs`.
    """

    config_defaults: ClassVar[Scaffold] = {}
    uses_graph: ClassVar[bool] = True
    is_hetero: ClassVar[bool] = False

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
        self.jk_channels = {"none": 0, "cat": out_channels, "max": hidden_channels}[jk]
        self.act_and_norm = act_and_norm(activation, norm)
        last = out_channels if jk == "none" else hidden_channels
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), last]

        self.convs, self.norms, self.residuals = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for i, (before, after) in enumerate(pairwise(widths)):
            is_output = self._is_output(i)
            self.convs.append(make_conv(before, after, is_output))
            self.norms.append(nn.Identity() if is_output else make_norm(norm, after))
            if residual:
                same = before == after
                self.residuals.append(nn.Identity() if same else nn.Linear(before, after))
        self.act = make_activation(activation)
        self.dropout, self.input_dropout = Dropout(dropout), Dropout(input_dropout)
        if jk != "none":
            num_parts = num_layers if jk == "cat" else 1
            self.lin = nn.Linear(num_parts * hidden_channels, out_channels)

    def forward(self, x: Tensor | LazyFeatures, blocks: Sequence[Block]) -> Tensor:
        """Compute the outputs of the seeds, the destinations of the last block.

        Args:
            x: float `[blocks[0].num_src, in_channels]`, or lazy features.
            blocks: One a layer, the innermost first; the destinations of each are the sources of
                the next (`dst_offset` 0).

        Returns:
            float `[blocks[-1].num_dst, out_channels]`.
        """
        if len(blocks) != self.num_layers:
            raise ValueError(f"{len(blocks)} blocks for {self.num_layers} layers")
        h = x if isinstance(x, LazyFeatures) and self.needs.rows else self.start(in_memory(x))
        state: Tensor | None = None
        for i, block in enumerate(blocks):
            rows = h = self.layer(i, h, block)
            state = self.jk_update(i, state, rows[: blocks[-1].num_dst])
        assert state is not None
        return self.readout(state)

    @property
    def needs(self) -> BlockNeeds:
        """The fields of a mini-batch that the model reads.

        The first layer takes lazy features only if `start` would not change them.
        """
        is_changed = self.training and self.input_dropout.p > 0
        needs, dtype = self.conv(0).needs, next(self.parameters()).dtype
        return replace(needs, rows=needs.rows and dtype == torch.float32 and not is_changed)

    def layer(self, i: int, h: Tensor | LazyFeatures, block: Block) -> Tensor:
        """Layer `i`'s output for the destinations of `block`, from the rows `h` of its sources."""
        conv = self.conv(i)
        linear = conv.linear(block)
        # `transform` narrows the aggregated rows, but multiplies the rows of all sources.
        pays_off = conv.has_transform and block.num_src <= 2 * block.num_dst
        if linear is not None and (isinstance(h, LazyFeatures) or not pays_off):
            return self._linear_layer(i, linear, h, block)
        if not conv.has_transform:
            h_dst = _destinations(h, block)
            return self.propagate(i, block, h, h_dst, h_dst)
        h = self.start(in_memory(h)) if isinstance(h, LazyFeatures) else h
        z = conv.transform(h)
        return self.propagate(i, block, z, _destinations(h, block), _destinations(z, block))

    def propagate(
        self, i: int, block: Block, z: Tensor | LazyFeatures, h_dst: Tensor, z_dst: Tensor
    ) -> Tensor:
        """Layer `i`'s output; the arguments are those of `BlockConv.propagate_block`."""
        return self.update(i, self.conv(i).propagate_block(block, z, h_dst, z_dst), h_dst)

    def _linear_layer(
        self, i: int, linear: AggregateLinear, h: Tensor | LazyFeatures, block: Block
    ) -> Tensor:
        is_plain = isinstance(self.norms[i], nn.Identity) and isinstance(self.act, nn.ReLU)
        if is_plain and not self.residuals and not self._is_output(i):
            return linear(h, self.dropout.p if self.training else 0.0)
        out = linear(h, None)
        return self.update(i, out, _destinations(h, block) if self.residuals else out)

    def start(self, x: Tensor) -> Tensor:
        """The first layer's input: `x` after dropout, in the weights' type (not under autocast)."""
        if not torch.is_autocast_enabled(x.device.type):
            x = x.to(next(self.parameters()).dtype)
        dropped: Tensor = self.input_dropout(x)
        return dropped

    def conv(self, i: int) -> BlockConv:
        """Layer `i`'s convolution."""
        conv = self.convs[i]
        assert isinstance(conv, BlockConv)
        return conv

    def update(self, i: int, out: Tensor, h_dst: Tensor) -> Tensor:
        """Norm, activation, residual and dropout: layer `i`'s output.

        Args:
            i: The layer.
            out: Output of its convolution.
            h_dst: The layer's input for the destinations.
        """
        is_output = self._is_output(i)
        if not is_output:
            out = self.act(self.norms[i](out))
        if self.residuals:
            out = out + self.residuals[i](h_dst)
        return out if is_output else self.dropout(out)

    def jk_update(self, i: int, state: Tensor | None, h: Tensor) -> Tensor:
        """The state of jumping knowledge after layer `i`.

        Args:
            i: The layer.
            state: `[rows, jk_channels]`, the state before; None for the first layer.
            h: `[rows, …]`, the layer's output.

        Returns:
            `[rows, jk_channels]`; without jumping knowledge `h`.
        """
        if self.jk == "none":
            return h
        if self.jk == "max":
            return h if state is None else torch.maximum(state, h)
        # lin(h_0 ‖ h_1 ‖ …) is a sum with one part of the weights a layer.
        weight = self.lin.weight[:, i * h.shape[1] : (i + 1) * h.shape[1]]
        own = F.linear(h, weight).to(weight.dtype)  # a sum of layers: not in autocast's type
        return own + self.lin.bias if state is None else state + own

    def readout(self, state: Tensor) -> Tensor:
        """The outputs of the final state."""
        out: Tensor = self.lin(state) if self.jk == "max" else state
        return out

    @property
    def embedding_channels(self) -> int:
        """Width of the rows that enter the last layer: the last convolution, or `lin` with `jk`."""
        if self.jk == "none":
            return self.in_channels if self.num_layers == 1 else self.hidden_channels
        return self.hidden_channels * (self.num_layers if self.jk == "cat" else 1)

    def pyg_model(self) -> PyGModel | None:
        """The same model as plain PyG, for `gnntrain export`; None: PyG has none like it.

        A subclass does not inherit it, since its additions would be missing. It may call
        `basic_gnn`.

        Raises:
            UserError: PyG has no such model with these options.
        """
        return None

    def basic_gnn(self, name: str, **arguments: Any) -> PyGModel:
        """PyG's `BasicGNN` of this name, with the options of this class and further arguments."""
        scaffold = {
            "in_channels": self.in_channels,
            "hidden_channels": self.hidden_channels,
            "num_layers": self.num_layers,
            "out_channels": self.out_channels,
            "dropout": self.dropout.p,
            **self.act_and_norm,
            **({} if self.jk == "none" else {"jk": self.jk}),
        }
        made = PyGModel(name, scaffold | arguments, self.state_dict(), imports=[name])
        if not self.residuals:
            return made
        return replace(made, call=f"with_residuals({name})", copied=[with_residuals])

    def _is_output(self, i: int) -> bool:
        return i == self.num_layers - 1 and self.jk == "none"


def act_and_norm(activation: Activation, norm: Norm) -> dict[str, Any]:
    """The arguments of PyG's models for an activation and a normalisation."""
    return {"act": None if activation == "none" else activation, **_PYG_NORMS[norm]}


def make_norm(norm: Norm, channels: int) -> nn.Module:
    """The normalisation of rows of this width."""
    options = _PYG_NORMS[norm]
    kind, keywords = options["norm"], options.get("norm_kwargs", {})
    made: nn.Module | None = normalization_resolver(kind, channels, **keywords)
    return nn.Identity() if made is None else made


def make_activation(activation: Activation) -> nn.Module:
    """The activation of this name."""
    made: nn.Module = activation_resolver(activation) if activation != "none" else nn.Identity()
    return made


def in_memory(x: Tensor | LazyFeatures) -> Tensor:
    """The rows as a tensor."""
    if isinstance(x, LazyFeatures):  # in autocast's type, to which a product would convert them
        return x.whole(autocast_type(x.device, torch.float32))
    return x


def _destinations(rows: Tensor | LazyFeatures, block: Block) -> Tensor:
    """The rows of the block's destinations among those of its sources."""
    start, stop = block.dst_offset, block.dst_offset + block.num_dst
    if isinstance(rows, Tensor) and block.num_dst == len(rows):  # a slice's gradient is a copy
        return rows
    return rows.read(start, stop) if isinstance(rows, LazyFeatures) else rows[start:stop]
