"""Limits on what a reader accepts: lengths of names that are shown, and memory."""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from pathlib import Path

from ...errors import InputError

# Memory limits of a container's control group, versions 2 and 1.
_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
SHOWN = 40  # characters of a file's own words in a message


def shown(text: object) -> str:
    """Return a file's own words for a message: quoted, printable, and no longer than 40 characters."""
    quoted = repr(text if isinstance(text, str | int | float | bool | None) else type(text).__name__)
    return quoted if len(quoted) <= SHOWN + 2 else f"{quoted[:SHOWN]}...{quoted[-1]}"


def check_memory(where: str, nbytes: int) -> None:
    """Raise InputError, naming ``where``, if it needs more bytes of memory than this machine has."""
    if nbytes > memory():
        raise InputError(
            f"{where} needs {nbytes / 2**30:,.1f} GiB of memory, and this machine has {memory() / 2**30:,.1f} GiB; "
            "if that is the true size, import it on a larger machine"
        )


@functools.cache
def memory() -> int:
    """Return the bytes of memory of the machine, or of the container."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _GROUP_LIMITS:
        with suppress(OSError, ValueError):  # "max" is no number
            found = min(found, int(Path(name).read_text(encoding="ascii")))
    return found
