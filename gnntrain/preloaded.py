"""What the fork server imports: all that a rank or a trial runs (see `distributed.processes`)."""

from gnntrain import lazy_imports, startup

lazy_imports.install()

with startup.collection_paused():  # and ranks do not look through what they share
    import torch

    import gnntrain.run
    import gnntrain.worker  # noqa: F401
    from gnntrain.compute.compiling import compile_kernels

    compile_kernels(torch.float32)
