"""Where feature rows lie while a GPU trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gnntrain.config.types import Number, OneOrMore, Section, ZeroOrMore

Ratio = Annotated[Number, Field(ge=0, le=1)]


class FeaturesConfig(Section):
    """Where feature rows lie while a GPU trains; a CPU always reads the store where it lies."""

    placement: Literal["auto", "resident", "sharded", "cached", "pinned", "memmap"] = "auto"
    """Where the rows lie that a GPU reads; auto chooses by size and says why."""
    cache_ratio: Ratio | None = None
    """Share of the nodes whose rows a GPU caches; null: by cache_bytes, else all that fit."""
    cache_bytes: ZeroOrMore | None = None
    """Bytes of GPU memory for cached rows; null: by cache_ratio, else all that is left."""
    hotness: Literal["presample", "degree"] = "presample"
    """Which rows are hot: those that batches drawn in advance read most, or by out-degree."""
    presample_epochs: OneOrMore = 2
    """Epochs drawn in advance to find the hot rows."""
