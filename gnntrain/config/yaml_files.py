"""YAML that others may have written: plain data of bounded size, and nothing else."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

_MOST_VALUES = 100_000
_DEEPEST = 50


def read_yaml(text: str) -> Any:
    """The plain data that `text` stands for.

    An alias costs as much as what it stands for, since whoever reads the data sees it each time:
    a few lines of aliases of aliases can stand for more values than there is memory.

    Raises:
        ValueError: It is no YAML, has a key twice, asks for an object of some class, nests more
            than 50 deep or stands for more than 100,000 values.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _num_values(node, {}, 0) > _MOST_VALUES:
            raise ValueError(f"it stands for more than {_MOST_VALUES:,} values")
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError(f"it nests more than {_DEEPEST} deep") from None
    except (yaml.YAMLError, OverflowError, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def _num_values(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """Values that `node` stands for, itself included; `known` holds those of finished nodes."""
    if depth > _DEEPEST:  # also where a value holds itself
        raise ValueError(f"it nests more than {_DEEPEST} deep, or holds itself")
    if id(node) not in known:
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            first: dict[str, yaml.Node] = {}
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and first.setdefault(key.value, key) is not key:
                    line = key.start_mark.line + 1
                    raise ValueError(f"line {line} has the key {key.value} again")
            children = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_num_values(child, known, depth + 1) for child in children)
    return known[id(node)]
