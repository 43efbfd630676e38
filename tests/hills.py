"""A data set of quantities, as a package of others offers it: `dataset=hills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packages import install

CODE = """
    import numpy as np
    from gnntrain.data.graph import GraphData

    def hills(root):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(240, 4)).astype(np.float32)
        src = rng.integers(0, 240, 900)
        dst = rng.integers(0, 240, 900)
        height = 5000 + 900 * (x @ [1.0, -0.5, 0.2, 0.0]) + 50 * rng.normal(size=240)
        slope = 0.3 + 0.1 * x[:, 3] + 0.01 * rng.normal(size=240)
        labels = np.stack([height, slope], axis=1).astype(np.float32)
        labels[rng.random((240, 2)) < 0.1] = np.nan
        has = np.flatnonzero(~np.isnan(labels).all(axis=1))
        splits = {"train": has[:120], "val": has[120:170], "test": has[170:]}
        return GraphData.of_arrays(
            dataset="hills", num_nodes=240, src=src, dst=dst, labels=labels, num_classes=2,
            task="continuous", splits=splits, features=x, metric=METRIC,
            class_names=np.array([b"height", b"slope"]),
        )
"""


def install_hills(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, metric: str = "r2"
) -> None:
    """Install it for the length of a test, judged by `metric`; `module` is as for `install`."""
    code = f"    METRIC = {metric!r}\n{CODE}"
    install(folder, monkeypatch, module, code, f"[gnntrain.datasets]\nhills = {module}:hills\n")
