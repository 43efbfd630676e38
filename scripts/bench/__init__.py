"""Benchmarks: `python -m scripts.bench.<name>`."""
