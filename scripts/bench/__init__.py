"""The benchmark, `python -m scripts.bench`; of memory: `python -m scripts.bench.memory`."""
