"""Run `mgg`, and let one call that changes files below a folder be its last one, or fail.

    python at_call.py FOLDER NUMBER ACTION LOG arguments of mgg

Calls are those of write, fsync, rename, replace, unlink, mkdir, rmdir, and of open where it creates a file, each of a
file whose path contains FOLDER. They are counted from 1 on, in the order in which they come, and listed in LOG.

ACTION: "count" only counts. "kill" sends SIGKILL to this process in place of call NUMBER; "torn" lets a write do half
of it before. The name of an error, as ENOSPC, fails call NUMBER; with a plus, as ENOSPC+, also all later calls that
need space (all but rename, replace, unlink and rmdir).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FREEING = ("rename", "replace", "unlink", "rmdir")


class Calls:
    """Counts calls, and acts on one of them."""

    def __init__(self, folder: str, number: int, action: str, log: str) -> None:
        self.folder, self.number, self.action, self.done = folder, number, action, 0
        self.log = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self.write = os.write

    def watch(self, name: str, place: Callable[..., str]) -> None:
        """Replace a function of os. place: returns the path that a call is about, from its arguments."""
        call = getattr(os, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            path = place(*arguments, **options)
            changes = name != "open" or arguments[1] & os.O_CREAT
            if self.folder in path and changes:
                self.act(name, path, call, arguments)
            return call(*arguments, **options)

        setattr(os, name, watched)

    def act(self, name: str, path: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.done += 1
        self.write(self.log, f"{self.done} {name} {Path(path).name}\n".encode())
        now, failing = self.done == self.number, self.action.removesuffix("+")
        if now and self.action in ("kill", "torn"):
            if self.action == "torn" and name == "write":
                call(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        later = self.action.endswith("+") and self.done > self.number and name not in FREEING
        if hasattr(errno, failing) and (now or later):
            number = getattr(errno, failing)
            raise OSError(number, os.strerror(number), path)


def of_descriptor(descriptor: int, *_: Any) -> str:
    """Return the path of an open file."""
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""


def of_path(path: Any, *_: Any, dir_fd: int | None = None, **__: Any) -> str:
    """Return a path, from its folder on where it is relative to an open one."""
    name = os.fsdecode(path) if not isinstance(path, int) else of_descriptor(path)
    return name if dir_fd is None else f"{of_descriptor(dir_fd)}/{name}"


def main(words: list[str]) -> int:
    folder, number, action, log, *arguments = words
    calls = Calls(folder, int(number), action, log)
    for name in ("write", "fsync"):
        calls.watch(name, of_descriptor)
    for name in ("rename", "replace", "unlink", "mkdir", "rmdir", "open"):
        calls.watch(name, of_path)
    from mgg_hpc.__main__ import main as mgg

    return mgg(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
