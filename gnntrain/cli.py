"""The command `gnntrain`: commands, their help, and exit codes.

Workers import this module too, and help must answer at once: what a command needs is imported when
the command runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from gnntrain import __version__, startup
from gnntrain.commands import COMMANDS, say
from gnntrain.commands.parsing import help_text, parse
from gnntrain.commands.training import refuse_several
from gnntrain.distributed.launchers import launched
from gnntrain.distributed.requeue import requeue, requeues_itself
from gnntrain.distributed.signals import install_handlers
from gnntrain.errors import GnntrainError, UserError, exit_code, signal_of
from gnntrain.failures import keep_traceback, sentence, way_on

_ENDED = {
    signal.SIGTERM: "terminated (SIGTERM)",
    signal.SIGHUP: "the terminal was closed (SIGHUP)",
    signal.SIGUSR2: "ended to be requeued",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 2: the user's mistake. 1: something failed at run time. 138: so, and another try may
    mend it. 128 + the signal's number: interrupted (130 by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP,
    140 by SIGUSR2).
    """
    _accept_any_locale()
    startup.install()
    try:
        with install_handlers(_requeue, _tell_forced_end):
            return _main(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt as error:
        number = signal_of(error)
        if getattr(error, "is_told", False):
            return 128 + number
        _complain(_ENDED.get(number, "interrupted"))
        _tell_way_on(error)
        return 128 + number
    except Exception as error:
        return _fail(error)


def _main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments.version:
        say(f"gnntrain {__version__}")
        return 0
    if arguments.help:
        say(help_text(arguments.command))
        return 0
    _check_surroundings(argv)
    name = arguments.command or "train"
    refuse_several(name, arguments, is_sweep=arguments.multirun)
    if arguments.hydra == ["--cfg=job"] and not arguments.multirun:
        from gnntrain.app import compose_config

        path, beginning = arguments.config_path, arguments.config_name
        composed = compose_config(
            arguments.overrides, arguments.config_dirs, config_path=path, config_name=beginning
        )
        say(composed.yaml.rstrip())
        return 0
    return COMMANDS[name].run(arguments)


def _check_surroundings(argv: Sequence[str]) -> None:
    """Whether what was typed is text, and the current directory there: all else builds on both."""
    for given in argv:
        try:
            given.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{given!a} is no text in this locale ({sys.getfilesystemencoding()})",
                "Set LC_ALL=C.UTF-8 or PYTHONUTF8=1, or choose a name without such characters.",
            ) from None
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError(
            "the current directory does not exist any more",
            "Change to one that does; run directories and relative paths start there.",
        ) from None


def _fail(error: Exception) -> int:
    """Tell a failure on stderr and return its exit code."""
    debug = os.environ.get("GNNTRAIN_DEBUG") == "1"
    code = exit_code(error)
    if getattr(error, "is_told", False):
        return code
    _complain(sentence(error))
    if isinstance(error, GnntrainError) and error.hint:
        _complain(error.hint, prefix="")
    if debug:
        traceback.print_exception(error)
    elif code != UserError.exit_code:
        kept = keep_traceback(error, getattr(error, "run_dir", None))
        if kept is not None:
            _complain(f"Traceback: in {kept}.", prefix="")
        elif not isinstance(error, GnntrainError):
            _complain("Traceback: GNNTRAIN_DEBUG=1 shows it.", prefix="")
    if code != UserError.exit_code:
        _tell_way_on(error)
    return code


def _tell_forced_end(error: BaseException) -> None:
    if isinstance(error, Exception):
        _fail(error)


def _requeue() -> None:
    if requeues_itself():
        started = launched()
        requeue(is_main=started is None or started.is_main)


def _tell_way_on(error: BaseException) -> None:
    command = way_on(error)
    if command is not None:
        _complain(f"Go on with `{command}`.", prefix="")


def _complain(text: str, prefix: str = "gnntrain: ") -> None:
    with contextlib.suppress(OSError):  # a terminal that was closed reads nothing any more
        print(f"{prefix}{text}", file=sys.stderr, flush=True)


def _accept_any_locale() -> None:
    """Print a character that the terminal does not know as `?` rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
