"""Signals that ask a job to save its state and end: SIGTERM, SIGINT and SIGUSR1 set a flag.

Ranks check the flag between steps, where all of them can agree (`check`, and `training.checkpoints.saver`). A second
signal changes nothing. SIGQUIT ends a process at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from ..errors import StoppedBySignal
from . import exit_code

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# MGG_STATUS, this and the rank are the name of a file by which a rank tells `mgg launch` that it handles signals.
LISTENS = ".listens."

_first: list[int] = []  # the signal that came first


def listen() -> None:
    """Handle these signals by setting the flag, from now on. Called in the main thread."""
    for number in ASKING:
        signal.signal(number, _note)
    status = os.environ.get(exit_code.STATUS)
    if status:
        rank = next((os.environ[name] for name in exit_code.RANK_VARIABLES if name in os.environ), "0")
        with contextlib.suppress(OSError):  # the folder is on another node, with a launcher of its own
            Path(status + LISTENS + rank).touch()


def _note(number: int, frame: object) -> None:
    if _first:
        return
    _first.append(number)
    if exit_code.is_first():
        with contextlib.suppress(OSError):  # the reader of stderr may have been ended by the same signal
            os.write(2, f"mgg: {name()}: stopping once the state is saved\n".encode())


def came() -> bool:
    """Return whether this process was sent one of the signals."""
    return bool(_first)


def name() -> str:
    """Return the name of the signal that came to this process, or "a signal" where it came to another rank."""
    return signal.Signals(_first[0]).name if _first else "a signal"


def check(comm: Any, saved: str) -> None:
    """Raise StoppedBySignal on all ranks if any was sent a signal. Collective.

    saved: text appended to the message "stopped by ...".
    """
    from . import mpi  # it loads NumPy, and `listen` shall be quick

    if mpi.any_bits(comm, int(came())):
        raise StoppedBySignal(f"stopped by {name()} before training began; {saved}")
