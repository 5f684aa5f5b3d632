"""Parts that the benchmarks share: processes of other libraries, ranks, references, pictures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mgg_hpc.__main__ import SETTINGS, main


def command(doc: str | None) -> Callable[[Any], click.Command]:
    """Return the decorator of a script's command, whose help is the script's docstring with its lines as they are."""
    return click.command(help=shown(doc), context_settings=SETTINGS)


def shown(doc: str | None) -> str:
    """Return a docstring as help, whose indented lines stay as they are."""
    return "\n\n".join(
        "\b\n" + each if each.startswith("    ") else each for each in (doc or "").split("\n\n")
    )


def run(command: click.Command) -> None:
    """Run a script's command, and exit as `mgg` does: 2 for wrong input, with one line that says what is wrong."""
    # Workers and temporary folders go, whatever ends this.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:], command, Path(sys.argv[0]).name))
