"""The registry of metrics; quantities against scikit-learn; metrics of other packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from gnntrain import metrics
from gnntrain.cli import main
from gnntrain.errors import UserError
from gnntrain.metrics import BUILT_IN_METRICS, get_metric, metric, metrics_for
from tests.config.problems import problems_of
from tests.examples import examples
from tests.packages import install
from tests.processes import python


def test_the_registry_does_not_import_torch() -> None:
    code = (
        "import sys; from gnntrain.metrics import get_metric, metrics_for;"
        "print(get_metric('roc_auc').higher_is_better, len(metrics_for('binary')),"
        " 'torch' in sys.modules)"
    )
    printed = python("-c", code)
    assert printed.stdout.split() == ["True", "8", "False"], printed.stderr


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["r2", "rmse", "mae"])
def test_an_output_that_is_not_finite_is_no_missing_target(name: str, value: float) -> None:
    outputs = torch.tensor([[1.0], [value], [3.0]], dtype=torch.float64)
    targets = torch.tensor([[1.0], [2.0], [torch.nan]], dtype=torch.float64)
    assert not np.isfinite(get_metric(name).compute(outputs, targets))
    assert np.isfinite(get_metric(name).compute(outputs[[0, 2, 0]], targets))


def test_each_kind_of_labels_has_metrics_and_a_default_among_them() -> None:
    assert metrics_for("multiclass") == ("accuracy", "f1_micro", "f1_macro")
    assert metrics_for("continuous") == ("r2", "rmse", "mae")
    of_classes = set(BUILT_IN_METRICS) - set(metrics_for("continuous"))
    assert set(metrics_for("binary")) == of_classes
    assert of_classes - set(metrics_for("multilabel")) == {"precision", "recall", "f1"}
    for kind, name in metrics.DEFAULT_METRICS.items():
        assert name in metrics_for(kind)


def test_a_name_is_registered_once_and_unknown_ones_are_refused() -> None:
    def compute(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs - targets).mean())

    with pytest.raises(ValueError, match="accuracy"):
        metric("accuracy", higher_is_better=True, label_kinds=("binary",))(compute)
    with pytest.raises(UserError, match="no_such"):
        get_metric("no_such")


def test_a_misspelt_name_is_told_with_the_nearest() -> None:
    dataset = {"name": "files", "edges": "e.csv", "metric": "acuracy"}
    assert problems_of({"dataset": dataset})["dataset.metric"].hint == "did you mean accuracy?"


def test_a_value_that_is_no_number_of_python_is_recorded_as_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = """
        import numpy as np, torch
        from gnntrain.metrics import metric

        @metric("wrong", higher_is_better=False, label_kinds=("multiclass",))
        def wrong(outputs, targets):
            wrong = float((outputs.argmax(dim=1) != targets).double().mean())
            return np.float64(wrong)
    """
    entry_points = "[gnntrain.metrics]\nwrong = of_numpy:wrong\n"
    install(here / "site", monkeypatch, "of_numpy", code, entry_points)
    keys = ["dataset.num_nodes=200", "trainer.gpus=0", "run.dir=run"]
    try:
        for command in ([*keys, "trainer.epochs=1"], ["evaluate", "run"]):
            assert main(command) == 0, capsys.readouterr().err
        assert main(["resume", "run", "trainer.epochs=2"]) == 0, capsys.readouterr().err
    finally:
        metrics._REGISTERED.pop("wrong", None)
    told = json.loads(Path("run/summary.json").read_text())
    assert told["test"]["wrong"] == pytest.approx(1 - told["test"]["accuracy"])


@pytest.mark.parametrize(
    ("body", "kind", "place"),
    [
        ("return outputs[:, 10**6].mean()", "multiclass", ":7)"),
        ("pass", "multiclass", "NoneType"),
        ("return '0.5'", "multiclass", "it returned '0.5'"),
        ("return 0.5", "regression", "continuous"),
        ("return 0.5 +", "multiclass", ", line 7"),
        ("from gnntrain.metrics import get_metric; get_metric('no')", "multiclass", "install the"),
    ],
)
def test_a_broken_metric_is_told_by_name_and_place(
    body: str,
    kind: str,
    place: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = f"""
        import numpy as np
        from gnntrain.metrics import metric

        @metric("broken", higher_is_better=True, label_kinds=("{kind}",))
        def compute(outputs, targets):
            {body}
    """
    entry_points = "[gnntrain.metrics]\nbroken = broken_metric:compute\n"
    install(here / "site", monkeypatch, "broken_metric", code, entry_points)
    try:
        keys = ["dataset.num_nodes=200", "trainer.gpus=0", "trainer.epochs=1", "run.dir=run"]
        assert main(keys) == 2
    finally:
        metrics._REGISTERED.pop("broken", None)
        sys.modules.pop("broken_metric", None)
    told = capsys.readouterr().err
    assert "'broken'" in told
    assert place in told
    assert "Traceback" not in told
    assert Path("run").exists() == (
        place not in ("continuous", ", line 7")
    )  # it fails when it is computed


@examples(60)
@given(
    seed=st.integers(0, 2**16),
    size=st.integers(2, 40),
    num_targets=st.integers(1, 3),
    offset=st.sampled_from([0.0, 1e6, -50.0]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_the_metrics_of_quantities_are_scikit_learns(
    seed: int, size: int, num_targets: int, offset: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    targets = offset + scale * rng.normal(size=(size, num_targets))
    outputs = targets + scale * rng.normal(size=targets.shape)
    oracles = {"r2": r2_score, "rmse": root_mean_squared_error, "mae": mean_absolute_error}
    for name, oracle in oracles.items():
        pair = torch.from_numpy(outputs), torch.from_numpy(targets)
        assert get_metric(name).compute(*pair) == pytest.approx(oracle(targets, outputs), rel=1e-6)
    targets[rng.random(targets.shape) < 0.3] = np.nan
    for name, oracle in oracles.items():
        known = [~np.isnan(column) for column in targets.T]
        values = [
            oracle(targets[rows, i], outputs[rows, i])
            for i, rows in enumerate(known)
            if rows.sum() > (name == "r2")
        ]
        found = get_metric(name).compute(torch.from_numpy(outputs), torch.from_numpy(targets))
        assert found == pytest.approx(np.mean(values) if values else np.nan, rel=1e-6, nan_ok=True)


def test_a_target_that_does_not_vary_has_no_r2_and_does_not_spoil_the_others() -> None:
    targets = torch.tensor([[0.1, 1.0], [0.1, 2.0], [0.1, 4.0]])
    outputs = targets + torch.tensor([0.5, 0.0])
    r2 = get_metric("r2").compute
    assert np.isnan(r2(outputs[:, :1], targets[:, :1]))
    assert r2(outputs, targets) == 1.0
