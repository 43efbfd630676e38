"""Imports of the fork server: the modules of a rank or a trial (see `distributed.processes`)."""

from gnntrain import startup

startup.install()

with startup.collection_paused():  # garbage collection in ranks skips the shared objects
    import torch

    import gnntrain.run
    import gnntrain.worker  # noqa: F401
    from gnntrain.compute.compiling import compile_kernels

    compile_kernels(torch.float32)
