"""The command line: each command names its options (cli/) and calls one ``process_*`` function with them."""

from __future__ import annotations

import errno
import sys
from typing import ClassVar

import click

from . import __version__
from .cli import generate, graphs, jobs, machine, traverse
from .cli.options import Verbs
from .errors import FAILED, STOPPED, WRONG_INPUT, InputError, StoppedBySignal

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}

# Errors that a device or a file system may return at any time: message and exit code.
DEVICE_ERRORS = {
    errno.ENOSPC: ("no space left on the device", WRONG_INPUT),
    errno.EDQUOT: ("no space left on the device", WRONG_INPUT),
    errno.EFBIG: ("the limit on the size of a file is too low", WRONG_INPUT),
    errno.EROFS: ("a read-only file system", WRONG_INPUT),
    errno.EIO: ("an input or output error of the device", FAILED),
    errno.ESTALE: ("a stale handle of a network file system", FAILED),
}


class _Verbs(Verbs):
    headings: ClassVar = {
        "generate": "Graphs",
        "new": "Training",
        "launch": "Several ranks",
        "runs": "Results",
        "traverse": "Without training",
        "doctor": "This machine",
    }


@click.group(cls=_Verbs, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="mgg")
def cli() -> None:
    """Train graph neural networks on whole graphs over many ranks."""


for command in (
    generate.generate,
    graphs.import_,
    graphs.export,
    graphs.info,
    graphs.verify,
    graphs.partition,
    jobs.new,
    jobs.train,
    jobs.resume,
    jobs.predict,
    jobs.tune,
    jobs.model,
    machine.launch,
    jobs.submit,
    jobs.runs,
    jobs.report,
    traverse.traverse,
    machine.doctor,
    machine.clean,
):
    cli.add_command(command)


def main(arguments: list[str] | None = None, command: click.Command = cli, name: str = "mgg") -> int:
    """Run one command and return its exit code (0 done, 1 failed, 2 wrong input, 3 stopped by a signal)."""

    def fail(message: str, code: int) -> int:
        """Print one line (from rank 0 only, where ranks agreed on it), and record the job's code."""
        from .runtime import exit_code

        exit_code.report(f"{name}: {message}", code)
        return code

    try:
        result = command.main(args=arguments, prog_name=name, standalone_mode=False)
    except (InputError, StoppedBySignal) as ended:
        stopped = isinstance(ended, StoppedBySignal)
        return fail(str(ended), STOPPED) if stopped else fail(f"error: {ended}", WRONG_INPUT)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else name
        if not isinstance(error, click.exceptions.NoArgsIsHelpError):
            return fail(f"error: {error.format_message()} (see '{where} --help')", WRONG_INPUT)
        click.echo(error.format_message(), err=True)
        result = WRONG_INPUT
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        return fail("error: interrupted", FAILED)
    except OSError as error:
        if error.errno not in DEVICE_ERRORS:
            raise
        said, code = DEVICE_ERRORS[error.errno]
        return fail(f"error: {said} for {error.filename or 'the output'}", code)
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
