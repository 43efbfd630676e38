"""Puts the fake GPU into every Python process of a command."""

import atexit
import os

if os.environ.get("FAKE_GPU") == "1":
    import torch  # noqa: F401

    from scripts.fake_gpu import kernels, runtime

    kernels.install()
    atexit.register(runtime.write_report)
    if os.environ.get("TRITON_INTERPRET") == "1":
        from scripts.fake_gpu import interpreter

        interpreter.install()
