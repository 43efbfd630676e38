"""How graphs of other tools become files that are read here, for messages."""

from __future__ import annotations

from pathlib import Path

_WRITE_GRAPHML = "networkx.write_graphml(graph, 'graph.graphml')"
_GIVE_GRAPHML = "Then give dataset.data=graph.graphml."
_WRITE_NPZ = (
    "edge_index = numpy.stack([end.numpy() for end in graph.edges()])",
    "arrays = {name: array.numpy() for name, array in graph.ndata.items()}",
    "numpy.savez('graph.npz', edge_index=edge_index, **arrays)",
)
_GIVE_NPZ = "Then give dataset.data=graph.npz."


def _hint(*lines: str, then: str, intro: str = "Convert it in Python:") -> str:
    return "\n".join([intro, *(f"  {line}" for line in lines), then])


def conversion_hint(path: Path) -> str | None:
    """The lines that convert a file of another tool; None for a suffix that is not known."""
    suffix, shown = path.suffix.lower(), repr(str(path))
    if suffix in (".pkl", ".pickle", ".gpickle", ".p"):
        load = f"graph = pickle.load(open({shown}, 'rb'))"
        intro = "A pickle runs code when it is read. If you trust it, convert it in Python:"
        lines = ("import networkx, pickle", load, _WRITE_GRAPHML)
        return _hint(*lines, then=_GIVE_GRAPHML, intro=intro)
    if suffix in (".bin", ".dgl"):
        load = f"graph = dgl.load_graphs({shown})[0][0]"
        return _hint("import dgl, numpy", load, *_WRITE_NPZ, then=_GIVE_NPZ)
    if suffix in (".gml", ".gexf"):
        load = f"graph = networkx.read_{suffix[1:]}({shown})"
        return _hint("import networkx", load, _WRITE_GRAPHML, then=_GIVE_GRAPHML)
    if suffix in (".xlsx", ".xls", ".xlsb", ".ods"):
        convert = f"pandas.read_excel({shown}).to_csv('table.csv', index=False)"
        return _hint("import pandas", convert, then="Then give table.csv.")
    return None
