"""The features of a user's columns, without gnntrain; `export` copies this file into `model.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from gnntrain.data.values import MISSING_MARKS


def is_missing(value: Any) -> bool:
    """Whether there is no value: None, NaN, or a word for it."""
    return str(value).strip().lower() in MISSING_MARKS


def numbers_of(values: Any, width: int) -> torch.Tensor:
    """float64 [num_nodes, width], NaN where a number is missing."""
    values = values.to_numpy() if hasattr(values, "to_numpy") else values
    if torch.is_tensor(values) or getattr(getattr(values, "dtype", None), "kind", "O") in "biuf":
        values = values if torch.is_tensor(values) else torch.tensor(values)
        return values.double().reshape(-1, width)  # type: ignore[no-any-return]
    rows = []
    for value in values:
        is_list = hasattr(value, "__len__") and not isinstance(value, str)
        row: Any = value if is_list else [None] * width if is_missing(value) else [value]
        rows.append([float("nan") if is_missing(number) else float(number) for number in row])
    return torch.tensor(rows, dtype=torch.float64)


def codes_of(values: Any, categories: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Place of each value in `categories`, len(categories) for others, and which are missing."""
    places = {category: place for place, category in enumerate(categories)}
    texts = [re.sub(r"^([+-]?[0-9]+)\.0+$", r"\1", str(value).strip()) for value in values]
    codes = torch.tensor([places.get(text, len(categories)) for text in texts])
    return codes, torch.tensor([is_missing(text) for text in texts])


def prepare(
    columns: Any,
    node_type: str = "node",
    path: str | Path = Path(__file__).with_name("model.json"),  # noqa: B008
) -> torch.Tensor:
    """The model's rows of a node type, float32 [num_nodes, num_features], from a table's columns.

    columns: list or array by name; a matrix [num_nodes, num_columns] where the columns had no names
    in training. A missing value is None, NaN or "".
    """
    about = json.loads(Path(path).read_text(encoding="utf-8"))
    done = about["preprocessing"][node_type]
    if not done["has_names"]:
        columns = {str(place): column for place, column in enumerate(torch.as_tensor(columns).T)}
    features, place = [], 0
    for column in done["columns"]:
        values, width = columns[column["name"]], column["width"]
        if column["categories"] is not None:
            codes, missing = codes_of(values, column["categories"])
            features.append(torch.eye(len(column["categories"]) + 1)[codes, :-1])
        else:
            numbers = numbers_of(values, width)
            missing = numbers.isnan().any(1)
            mine = slice(place, place + width)
            place += width
            if done["fills"] is not None:
                fills = torch.tensor(done["fills"][mine], dtype=torch.float64)
                numbers = torch.where(numbers.isnan(), fills, numbers)
            if done["means"] is not None:
                means = torch.tensor(done["means"][mine], dtype=torch.float64)
                stds = torch.tensor(done["stds"][mine], dtype=torch.float64)
                numbers = (numbers - means) / stds
            features.append(numbers.float())
        if missing.any() and done["fills"] is None:
            raise ValueError(f"column {column['name']} has missing values")
        if column["indicator"]:
            features.append(missing.float()[:, None])
    x = torch.cat(features, 1)
    if about["preparation"]["normalize_features"]:
        x = x - (about["lowest"][node_type] if about["lowest"] else x.min())
        x = x / x.sum(1, keepdim=True).clamp(min=1)
    return x.to(getattr(torch, about["preparation"]["feature_dtype"])).float()
