"""Modules that are executed when first used, and those that a default run does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# What a default run has no use for: a second of imports, or more, each.
FORBIDDEN = (
    *("torch._dynamo.convert_frame", "torch_geometric.datasets.planetoid", "torchmetrics"),
    *("matplotlib", "pandas", "pyarrow", "sklearn", "scipy.signal", "sympy", "networkx", "ogb"),
    *("optuna", "numpy.f2py.crackfortran", "tensorboard", "wandb", "mlflow"),
)

RUN = """
import sys
from gnntrain.cli import main
code = main([*"dataset.num_nodes=200 trainer.epochs=2 run.dir=run trainer.gpus=0".split()])
print("imported", *[name for name in sys.argv[1:] if name in sys.modules])
sys.exit(code)
"""

USE = """
import sys, threading
from gnntrain import lazy_imports
lazy_imports.install()
import torch, torch_geometric, torch_geometric.datasets as datasets
assert "torch_geometric.datasets.planetoid" not in sys.modules
found = []
threads = [threading.Thread(target=lambda: found.append(datasets.Planetoid)) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert [kind.__name__ for kind in found] == ["Planetoid"] * 4, found
from torch_geometric.datasets import Planetoid
assert Planetoid is found[0]

weights = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.Adam([weights])
weights.sum().backward()
optimizer.step()
assert "torch._dynamo.convert_frame" not in sys.modules
double = torch.compile(lambda x: x * 2, backend="eager")
assert double(torch.ones(2)).tolist() == [2, 2]
assert "torch._dynamo.convert_frame" in sys.modules
"""


def python(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_a_default_run_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    ended = python(RUN, tmp_path, *FORBIDDEN)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "imported"


def test_a_lazy_module_is_whole_once_it_is_used(tmp_path: Path) -> None:
    ended = python(USE, tmp_path)
    assert ended.returncode == 0, ended.stderr
