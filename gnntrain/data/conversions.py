"""How files of other tools become files that are read here, for messages."""

from __future__ import annotations

from pathlib import Path

PICKLED_SUFFIXES = (".pkl", ".pickle", ".gpickle", ".p")
DGL_SUFFIXES = (".bin", ".dgl")

NETWORKX = 'import networkx\nnetworkx.write_graphml(graph, "graph.graphml")'
DGL = (
    "x, y = graph.ndata['feat'].numpy(), graph.ndata['label'].numpy()\n"
    "edge_index = numpy.stack([end.numpy() for end in graph.edges()])\n"
    'numpy.savez("graph.npz", x=x, y=y, edge_index=edge_index)'
)
_AS_GRAPHML = "then give dataset.data=graph.graphml."
_AS_NPZ = "then give dataset.data=graph.npz; masks go in by their names, as train_mask."


def networkx_hint(load: str = "") -> str:
    """The lines that convert a NetworkX graph."""
    return _hint("Convert it in Python:", load + NETWORKX, _AS_GRAPHML)


def dgl_hint(load: str = "") -> str:
    """The lines that convert a graph of DGL."""
    return _hint("Convert it in Python:", load + DGL, _AS_NPZ)


def conversion_hint(path: Path) -> str | None:
    """How a file of another tool is converted; None for a suffix that is not known."""
    suffix, shown = path.suffix.lower(), str(path)
    if suffix in PICKLED_SUFFIXES:
        intro = "A pickle runs code when it is read. If you trust it, convert it in Python:"
        load = f"graph = pickle.load(open({shown!r}, 'rb'))\n"
        return _hint(intro, load + NETWORKX, _AS_GRAPHML)
    if suffix in DGL_SUFFIXES:
        return dgl_hint(f"graph = dgl.load_graphs({shown!r})[0][0]\n")
    if suffix in (".gml", ".gexf"):
        return networkx_hint(f"graph = networkx.read_{suffix[1:]}({shown!r})\n")
    if suffix in (".xls", ".xlsb", ".ods"):
        lines = f"import pandas\npandas.read_excel({shown!r}).to_csv('table.csv', index=False)"
        return _hint("Convert it in Python:", lines, "then give table.csv.")
    return None


def _hint(intro: str, lines: str, outro: str) -> str:
    return "\n".join([intro, *(f"  {line}" for line in lines.splitlines()), outro])
