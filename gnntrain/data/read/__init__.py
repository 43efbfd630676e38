"""Reads a graph of tables, arrays and objects: `GraphSpec` → `read_graph` → `GraphData`."""
