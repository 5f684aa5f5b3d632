"""Counts in headers of files, and limits of memory."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...errors import InputError, shown

# Memory limits of a container's control group, versions 2 and 1.
_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def read_counts(where: str, line: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return the whole numbers in a line, one for each name. Raises InputError, naming ``where``, for anything else."""
    words = line.split()
    if len(words) != len(names) or not all(re.fullmatch("[0-9]{1,15}", word) for word in words):
        raise InputError(
            f"{where}: {shown(line)}; expected {len(names)} whole number{'s'[: len(names) > 1]}: {', '.join(names)}"
        )
    return tuple(map(int, words))


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
