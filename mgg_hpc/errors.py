"""The errors that a user can mend, and the exit codes of section "Commands" of the documentation."""

from __future__ import annotations

DONE = 0
FAILED = 1
WRONG_INPUT = 2
STOPPED = 3


class InputError(Exception):
    """The user's input is wrong: one line that names what is wrong and what would be right.

    Every command turns it into that line on stderr and exit code 2.
    """


class StoppedBySignal(Exception):  # noqa: N818 - the user asked for it
    """A signal asked the job to end, and what can be saved is saved: one line, and exit code 3. On all ranks alike."""
