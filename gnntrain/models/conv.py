"""Convolutions of PyG, computed on blocks."""

from __future__ import annotations

from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate_linear import AggregateLinear
from gnntrain.sampling.block import Block, BlockNeeds


class BlockConv:
    """A mixin: computes a convolution of PyG on blocks, with its parameters and options.

    `conv(x, edge_index)` is still PyG's own message passing. On blocks a convolution has two
    stages: `transform`, by row, and `propagate_block`, over edges. Inference for all nodes passes
    chunks of rows through the first and chunks of destinations through the second.

    A subclass must not have the name of its base: PyG looks up a class's source by name.
    """

    @property
    def needs(self) -> BlockNeeds:
        """The fields of a block that it reads; `rows`: whether it takes lazy features."""
        return BlockNeeds()

    @property
    def has_transform(self) -> bool:
        """Whether `transform` is not the identity.

        If the product may come before or after a linear aggregation, it comes before if that
        narrows the rows to aggregate.
        """
        return False

    def transform(self, x: Tensor) -> Tensor:
        """The rows to aggregate, each from its own row of `x`: `[rows, F]` → `[rows, …]`."""
        return x

    def propagate_block(
        self, block: Block, z: Tensor | LazyFeatures, x_dst: Tensor, z_dst: Tensor
    ) -> Tensor:
        """Aggregate over a block's edges, and add the destination's own term.

        Args:
            block: The edges.
            z: `[num_src, …]`, from `transform`, or without one the layer's input, perhaps lazy.
            x_dst: `[num_dst, …]`, the layer's input for the destinations.
            z_dst: `[num_dst, …]`, the destinations' rows of `z`.

        Returns:
            `[num_dst, width of the layer]`.
        """
        raise NotImplementedError

    def linear(self, block: Block) -> AggregateLinear | None:  # noqa: ARG002
        """The convolution as one product with the aggregate of its input; None if not possible.

        This multiplies a row for each destination, `transform` a row for each source.
        """
        return None
