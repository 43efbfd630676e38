from __future__ import annotations

import pytest

from gnntrain.config import from_dict
from gnntrain.data.targets import refuse_other_types
from gnntrain.errors import UserError
from tests.hetero_graphs import hetero_graph


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"task": {"target": "papers"}}, ["task.target=papers", "mean paper?"]),
        ({"task": {"target": "author"}}, ["labels of paper", "task.target=paper"]),
        ({"model": {"name": "sage"}}, ["model=sage", "rgcn"]),
        ({"task": {"target": "paper"}}, []),
        ({}, []),
    ],
    ids=str,
)
def test_a_target_without_labels_and_a_model_of_one_type_are_refused(
    keys: dict[str, dict[str, str]], words: list[str]
) -> None:
    config = from_dict({"model": {"name": "rgcn"}} | keys)
    if not words:
        refuse_other_types(config, hetero_graph())
        return
    with pytest.raises(UserError) as caught:
        refuse_other_types(config, hetero_graph())
    assert not [word for word in words if word not in str(caught.value)]
