"""The command `gnntrain`: commands, their help, and exit codes.

Workers import this module too, and help must answer at once: what a command needs is imported when
the command runs.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from gnntrain import __version__, startup
from gnntrain.commands import COMMANDS, say
from gnntrain.commands.parsing import composed, help_text, parse
from gnntrain.commands.training import refuse_several
from gnntrain.distributed.launchers import launched, requeues_itself
from gnntrain.distributed.signals import install_handlers, on_forced_exit, requeue
from gnntrain.errors import GnntrainError, UserError, exit_code, signal_of
from gnntrain.failures import keep_traceback

_ENDED = {
    128 + signal.SIGTERM: "terminated (SIGTERM)",
    128 + signal.SIGHUP: "the terminal was closed (SIGHUP)",
    128 + signal.SIGUSR2: "ended to be requeued",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 2: the user's mistake. 1: something failed at run time. 138: so, and another try may
    mend it. 128 + the signal's number: interrupted (130 by Ctrl-C, 143 by SIGTERM).
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal lacks is printed as `?`
            stream.reconfigure(errors="replace")
    startup.install()
    try:
        with install_handlers(_requeue), on_forced_exit(_fail):
            return _main(sys.argv[1:] if argv is None else list(argv))
    except (Exception, KeyboardInterrupt) as error:
        return _fail(error)


def _main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments.version:
        say(f"gnntrain {__version__}")
        return 0
    if arguments.help:
        say(help_text(arguments.command))
        return 0
    # All else builds on both: what was typed is text, and the current directory there.
    try:
        for given in argv:
            given.encode()
        Path.cwd()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{error.object!a} is no text in this locale ({sys.getfilesystemencoding()})",
            "Set LC_ALL=C.UTF-8 or PYTHONUTF8=1, or choose a name without such characters.",
        ) from None
    except FileNotFoundError:
        raise UserError(
            "the current directory does not exist any more",
            "Change to one that does; run directories and relative paths start there.",
        ) from None
    name = arguments.command or "train"
    refuse_several(name, arguments, is_sweep=arguments.multirun)
    if arguments.hydra == ["--cfg=job"] and not arguments.multirun:
        import yaml  # type: ignore[import-untyped]

        plain = composed(arguments).to_dict()
        say(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip())
        return 0
    return COMMANDS[name].run(arguments)


def _fail(error: BaseException) -> int:
    """Tell a failure on stderr and return its exit code."""
    if isinstance(error, KeyboardInterrupt):
        code = 128 + signal_of(error)
        text = _ENDED.get(code, "interrupted")
    else:
        from gnntrain.plugins import told  # imported only for a failure

        code, text = exit_code(error), told(error)
    if getattr(error, "is_told", False):
        return code
    run_dir = getattr(error, "run_dir", None)  # of the run or sweep
    _complain(f"gnntrain: {text}")
    if isinstance(error, Exception) and os.environ.get("GNNTRAIN_DEBUG") == "1":
        traceback.print_exception(error)
    elif isinstance(error, Exception) and code != UserError.exit_code:
        if kept := keep_traceback(error, run_dir):
            _complain(f"Traceback: in {kept}.")
        elif not isinstance(error, GnntrainError):
            _complain("Traceback: GNNTRAIN_DEBUG=1 shows it.")
    if code != UserError.exit_code and run_dir is not None:
        from gnntrain.reporting.rundir import has_checkpoint
        from gnntrain.reporting.text import shown_path

        if has_checkpoint(run_dir) or (Path(run_dir) / "sweep.json").is_file():
            _complain(f"Go on with `gnntrain resume {shlex.quote(shown_path(run_dir))}`.")
    return code


def _requeue() -> None:
    if requeues_itself():
        started = launched()
        requeue(is_main=started is None or started.is_main)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that was closed reads nothing any more
        print(text, file=sys.stderr, flush=True)
