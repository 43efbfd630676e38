"""What makes a convolution of PyG one that is computed on blocks."""

from __future__ import annotations

from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate_linear import AggregateLinear
from gnntrain.sampling.block import Block, BlockNeeds


class BlockConv:
    """Mixed into a convolution of PyG, whose parameters and options it computes with.

    `conv(x, edge_index)` is still PyG's own message passing. On blocks a convolution is two stages:
    `transform`, over rows, and `propagate_block`, over edges, so that inference for all nodes can
    pass chunks of rows through the one and chunks of destinations through the other.

    A subclass needs a name of its own: PyG finds the sources of a class and its bases by name.
    """

    @property
    def needs(self) -> BlockNeeds:
        """What blocks must carry; `rows`: whether it aggregates lazy features where they lie."""
        return BlockNeeds()

    @property
    def has_transform(self) -> bool:
        """Whether `transform(x)` is anything but `x` itself."""
        return False

    def transform(self, x: Tensor) -> Tensor:
        """What a node sends, from its own row alone: `[rows, F]` → `[rows, any width]`."""
        return x

    def propagate_block(
        self, block: Block, z: Tensor | LazyFeatures, x_dst: Tensor, z_dst: Tensor
    ) -> Tensor:
        """Aggregate over a block's edges, and add what belongs to the destination itself.

        Args:
            block: The edges.
            z: `[num_src, …]`, from `transform`; without one the layer's input, perhaps lazy.
            x_dst: `[num_dst, …]`, the layer's input for the destinations.
            z_dst: `[num_dst, …]`, the destinations' rows of `z`.

        Returns:
            `[num_dst, width of the layer]`.
        """
        raise NotImplementedError

    def linear(self, block: Block) -> AggregateLinear | None:  # noqa: ARG002
        """The convolution as one product with an aggregate of the layer's input, if it is that.

        Where the aggregation is linear it may come before or after the product: before, it takes a
        product for each destination only; after, one for each source, but of narrower rows.
        """
        return None


def narrows(before: int, after: int) -> bool:
    """Whether a linear map is better applied before a (linear) aggregation than after it.

    Before, the aggregation is as wide as the smaller side.
    """
    return before > after
