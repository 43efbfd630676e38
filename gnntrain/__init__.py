"""Train graph neural networks on graphs of any size, on any number of GPUs, with one command."""

__version__ = "0.1.0"
