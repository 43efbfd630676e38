"""Benchmarks and cluster samples; not part of the package."""
