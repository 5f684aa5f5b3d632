"""Errors that a user can mend, words of their messages, and the exit codes of docs/install.md."""

from __future__ import annotations

import difflib
from collections.abc import Collection

DONE = 0
FAILED = 1
WRONG_INPUT = 2
STOPPED = 3
SHOWN = 40  # characters of a file's own words in a message


class InputError(Exception):
    """The user's input is wrong: one line that names what is wrong and what would be right.

    Every command turns it into that line on stderr and exit code 2.
    """


def shown(text: object) -> str:
    """Return a file's own words for a message: quoted, printable, and no longer than 40 characters."""
    quoted = repr(text if isinstance(text, str | int | float | bool | None) else type(text).__name__)
    return quoted if len(quoted) <= SHOWN + 2 else f"{quoted[:SHOWN]}...{quoted[-1]}"


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return the end of a message on a word that is not known: "; did you mean 'train'?", or "" if none is near."""
    near = [each for each in known if sorted(each) == sorted(word)] or difflib.get_close_matches(
        word, known, 1
    )
    return f"; did you mean {near[0]!r}?" if near else ""


class StoppedBySignal(Exception):  # noqa: N818 - the user asked for it
    """Raised on all ranks once a signal has asked the job to end and its state is saved.

    Every command turns it into one line on stderr and exit code 3.
    """
