"""Cutting a graph into parts: which node goes to which part, and the parts' files."""
