from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.config import from_dict
from gnntrain.data.read.splits import draw_split
from gnntrain.data.targets import refuse_other_types
from gnntrain.errors import UserError
from tests.hetero_graphs import hetero_graph

RATIOS = st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)).map(
    lambda parts: tuple(part / sum(parts) for part in parts)
)


@given(
    labels=st.lists(st.integers(0, 4), max_size=60),
    ratio=RATIOS,
    seed=st.integers(0, 2**63 - 1),
    number=st.integers(0, 2**62),
    stratify=st.booleans(),
)
def test_a_drawn_split_shares_out_all_nodes_exactly_but_for_rounding(
    labels: list[int], ratio: tuple[float, ...], seed: int, number: int, stratify: bool
) -> None:
    nodes = np.arange(len(labels)) * 3 + 1
    strata = np.array(labels, np.int64)
    given_strata = strata if stratify else None
    split = draw_split(nodes, ratio, seed, number, given_strata)
    assert sorted(np.concatenate(list(split.values())).tolist()) == nodes.tolist()
    again = draw_split(nodes, ratio, seed, number, given_strata)
    for name, ids in split.items():
        assert ids.tolist() == again[name].tolist()
        assert np.all(np.diff(ids) > 0)
    groups = [list(range(len(nodes)))]
    if stratify:
        groups += [np.flatnonzero(strata == value).tolist() for value in set(labels)]
    for group in groups:
        members = set(nodes[group].tolist())
        sizes = [len(members.intersection(ids.tolist())) for ids in split.values()]
        largest = 1 if len(group) == len(nodes) else 2
        assert abs(sizes[0] - ratio[0] * len(members)) < 1 + 1e-9
        for size, share in zip(sizes, ratio, strict=True):
            assert abs(size - share * len(members)) < largest + 1e-9
    for share, ids in zip(ratio, split.values(), strict=True):
        assert share > 0 or len(ids) == 0


@pytest.mark.parametrize("stratify", [False, True])
def test_every_node_is_in_each_split_as_often_as_the_shares_say(stratify: bool) -> None:
    nodes, ratio, num_draws = np.arange(20), (0.5, 0.3, 0.2), 2000
    strata = np.repeat([0, 1], 10) if stratify else None
    counts: Counter[tuple[int, str]] = Counter()
    for number in range(num_draws):
        for name, ids in draw_split(nodes, ratio, 7, number, strata).items():
            counts.update((node, name) for node in ids.tolist())
    chi_square = sum(
        (counts[node, name] - num_draws * share) ** 2 / (num_draws * share)
        for node in nodes.tolist()
        for name, share in zip(("train", "val", "test"), ratio, strict=True)
    )
    assert chi_square < 80  # 38 degrees of freedom: the 0.9999 quantile is 79


def test_splits_of_other_seeds_and_numbers_differ() -> None:
    nodes = np.arange(50)
    drawn = {
        tuple(draw_split(nodes, (0.6, 0.2, 0.2), seed, number)["train"].tolist())
        for seed in range(4)
        for number in range(4)
    }
    assert len(drawn) == 16


def test_many_small_classes_leave_no_split_empty() -> None:
    strata = np.repeat(np.arange(1000), 2)
    split = draw_split(np.arange(2000), (0.6, 0.2, 0.2), 0, 0, strata)
    assert [len(ids) for ids in split.values()] == [1200, 400, 400]


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        ({"task": {"target": "papers"}}, "task.target=papers", "paper"),
        ({"task": {"target": "author"}}, "labels of paper", "task.target=paper"),
        ({"model": {"name": "sage"}}, "model=sage", "rgcn"),
    ],
    ids=str,
)
def test_a_target_without_labels_and_a_model_of_one_type_are_refused(
    keys: dict[str, dict[str, str]], message: str, hint: str
) -> None:
    with pytest.raises(UserError) as caught:
        refuse_other_types(from_dict({"model": {"name": "rgcn"}} | keys), hetero_graph())
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("target", [None, "paper"])
def test_a_model_of_typed_graphs_learns_the_type_with_labels(target: str | None) -> None:
    keys = {"model": {"name": "rgcn"}, "task": {"target": target}}
    refuse_other_types(from_dict(keys), hetero_graph())
