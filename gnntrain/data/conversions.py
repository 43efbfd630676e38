"""How graphs of other tools become files that are read here, for messages."""

from __future__ import annotations

from pathlib import Path

_PICKLES = (".pkl", ".pickle", ".gpickle", ".p")
_DGL = (".bin", ".dgl")
_SHEETS = (".xlsx", ".xls", ".xlsb", ".ods")

_INTRO = "Convert it in Python:"
_WRITE_GRAPHML = "networkx.write_graphml(graph, 'graph.graphml')"
_AS_GRAPHML = "Then give dataset.data=graph.graphml."
_WRITE_NPZ = (
    "edge_index = numpy.stack([end.numpy() for end in graph.edges()])",
    "arrays = {name: array.numpy() for name, array in graph.ndata.items()}",
    "numpy.savez('graph.npz', edge_index=edge_index, **arrays)",
)
_AS_NPZ = "Then give dataset.data=graph.npz."


def networkx_hint() -> str:
    """The lines that convert a NetworkX graph."""
    return _hint(_INTRO, ["import networkx", _WRITE_GRAPHML], _AS_GRAPHML)


def dgl_hint() -> str:
    """The lines that convert a graph of DGL."""
    return _hint(_INTRO, ["import numpy", *_WRITE_NPZ], _AS_NPZ)


def conversion_hint(path: Path) -> str | None:
    """The lines that convert a file of another tool; None for a suffix that is not known."""
    suffix, shown = path.suffix.lower(), str(path)
    if suffix in _PICKLES:
        intro = "A pickle runs code when it is read. If you trust it, convert it in Python:"
        load = ["import networkx, pickle", f"graph = pickle.load(open({shown!r}, 'rb'))"]
        return _hint(intro, [*load, _WRITE_GRAPHML], _AS_GRAPHML)
    if suffix in _DGL:
        load = ["import dgl, numpy", f"graph = dgl.load_graphs({shown!r})[0][0]"]
        return _hint(_INTRO, [*load, *_WRITE_NPZ], _AS_NPZ)
    if suffix in (".gml", ".gexf"):
        load = ["import networkx", f"graph = networkx.read_{suffix[1:]}({shown!r})"]
        return _hint(_INTRO, [*load, _WRITE_GRAPHML], _AS_GRAPHML)
    if suffix in _SHEETS:
        convert = f"pandas.read_excel({shown!r}).to_csv('table.csv', index=False)"
        return _hint(_INTRO, ["import pandas", convert], "Then give table.csv.")
    return None


def _hint(intro: str, lines: list[str], outro: str) -> str:
    return "\n".join([intro, *(f"  {line}" for line in lines), outro])
