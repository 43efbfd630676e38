"""Processes of ranks and of a sweep's workers: forked from a server, or spawned for a GPU.

The server has imported their modules, so that each of them begins at once and shares the pages of
its libraries. CUDA does not survive a fork: processes of a GPU are spawned and import by
themselves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import (
    forkserver,
    get_context,
    parent_process,
    reduction,
    resource_tracker,
)
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gnntrain.distributed.signals import HANDLED, block_signals

_PRELOADED = "gnntrain.preloaded"
_STREAMS = (1, 2)


def start_server(preloaded: str = _PRELOADED) -> None:
    """Start the server, unless it runs. Returns at once, while the server imports `preloaded`."""
    # Signals to the process group are for the ranks: the server ends with this process.
    with block_signals():
        resource_tracker.ensure_running()
        with block_signals():  # the tracker has unblocked two
            forkserver.set_forkserver_preload([preloaded])
            with _our_modules_alone():
                forkserver.ensure_running()


@contextlib.contextmanager
def _our_modules_alone() -> Iterator[None]:
    """The server looks for modules in the current directory only if this process does: `python -c`,
    which it is, would find a user's `random.py` before Python's."""
    name, here = "PYTHONSAFEPATH", Path.cwd()
    if name in os.environ or any(Path(folder).absolute() == here for folder in sys.path):
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


def start_process(
    target: Callable[..., None], arguments: Sequence[Any], *, uses_gpu: bool
) -> BaseProcess:
    """Start a process. It begins with the signals of `HANDLED` blocked.

    Args:
        target: A module-level function.
        arguments: Its arguments; pickled.
        uses_gpu: Whether it must not be forked.
    """
    if not uses_gpu:
        start_server()
    process: BaseProcess
    with block_signals():
        resource_tracker.ensure_running()
        with block_signals():  # the tracker has unblocked two
            if uses_gpu:
                process = get_context("spawn").Process(target=target, args=tuple(arguments))
            else:
                forked = (_Surroundings(), target, tuple(arguments))
                process = get_context("forkserver").Process(target=_run, args=forked)
            process.start()
    return process


def unblock_signals() -> None:
    """Unblock the signals that `start_process` has blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


def _run(_: _Surroundings, target: Callable[..., None], arguments: Sequence[Any]) -> None:
    parent = parent_process()
    # The server may fork a process after its parent was killed.
    if parent is not None and parent.is_alive():
        target(*arguments)


class _Surroundings:
    """Standard output, standard error and environment of this process.

    Unpickled in a forked process, they replace those that the server had when it was started.
    """

    def __getstate__(self) -> tuple[dict[str, str], list[Any]]:
        return dict(os.environ), [reduction.DupFd(stream) for stream in _STREAMS]

    def __setstate__(self, state: tuple[dict[str, str], list[Any]]) -> None:
        environment, streams = state
        os.environ.clear()
        os.environ.update(environment)
        for stream, ours in zip(_STREAMS, streams, strict=True):
            given = ours.detach()
            os.dup2(given, stream)
            os.close(given)
