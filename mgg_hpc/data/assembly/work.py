"""The folder in which a build keeps its runs, so that a build that was killed goes on where it was.

It is next to the output, named `.NAME.build`, with a `manifest.json` that says how far the build is. A lock on the
folder keeps a second build of the same output away; the system takes the lock from a process that is killed.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ...errors import InputError
from ..atomic_write import replacement, sync

Progress = Callable[[str, int, int], None]  # (phase, done, total)

FORMAT, VERSION = "mgg-build", 4
MANIFEST = "manifest.json"
KEEP_SECONDS = 20.0  # between two writings of the manifest
_OWN = re.compile(r"manifest\.json|\.manifest\.json\..*\.tmp|(run|part|data)\d+|degree|indices")  # its files


def folder_of(output: Path) -> Path:
    """Return the folder of a graph file's build."""
    return output.with_name(f".{output.name}.build")


def unfinished(folder: Path) -> list[Path]:
    """Return the folders of builds below ``folder`` in which no process works any more."""
    found = []
    for path in sorted(folder.rglob(".*.build")):
        if path.is_dir() and not path.is_symlink() and _is_own(path):
            with suppress(InputError, OSError), _locked(path):
                found.append(path)
    return found


def discard(path: Path) -> None:
    """Remove the folder of a build, unless a process works in it."""
    with suppress(InputError), _locked(path) as work:
        work.remove()


def _locked(path: Path) -> WorkFolder:
    """Return a build's folder, locked and unchanged. Raises InputError if another process works in it."""
    return WorkFolder(path.with_name(path.name[1 : -len(".build")]), None, take=False)


def _is_own(path: Path) -> bool:
    """Return whether a folder has files of a build, and nothing else."""
    names = [each.name for each in path.iterdir()]
    return bool(names) and all(_OWN.fullmatch(name) for name in names)


class WorkFolder:
    """The folder of one build, made when it is first needed; a context manager that gives up the lock.

    Args: key: text that depends on the edges and the options; files of a build of another key are removed, and without
    a key none is used again. take: remove files that cannot be used.

    Attributes: state: contents of the manifest, which `keep` adds to. keeps: keep the folder when an InputError ends
    the build, since its files stay right when the input is mended.

    Raises InputError while another process holds the lock, and for a folder with files of others.
    """

    def __init__(self, output: Path, key: str | None, *, take: bool = True) -> None:
        self.path, self._key, self._lock, self._takes = folder_of(output.resolve()), key, -1, take
        self.state: dict[str, Any] = {}
        self.keeps = False
        self._unsynced, self._kept = set[Path](), time.monotonic()
        if self.path.is_dir():
            self._claim()
            self.state, other = self._found()
            if take and not self.state:
                self._empty(output)
                if other:
                    print(
                        f"mgg: {output} is begun anew: what an unfinished build of it left is {other}",
                        file=sys.stderr,
                    )

    def __enter__(self) -> WorkFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """After an error, keep only files with which a later process can go on."""
        try:
            if kind is not None and self.made and self._takes:
                if self._key is not None and self.state and (self.keeps or not issubclass(kind, InputError)):
                    with suppress(OSError, InputError):
                        self._write()
                        return
                self.remove()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def made(self) -> bool:
        """Whether there is a folder."""
        return self._lock >= 0

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder, which is made."""
        if not self.made:
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._claim()
        return self.path / name

    def write(self, name: str, columns: Iterable[NDArray[Any]]) -> Path:
        """Write arrays one after the other into a file; return its path."""
        path = self.file(name)
        with path.open("wb", buffering=0) as file:
            for column in columns:
                _write(file, column)
        self._unsynced.add(path)
        return path

    def keep(self, **state: Any) -> None:
        """Add to the state. The manifest is written when it was not for KEEP_SECONDS, or when an error ends the build.

        Files that the state names have to be written by then, by `write` or as a `ColumnFile` of this folder.
        """
        self.state |= state
        if self._key is not None and time.monotonic() - self._kept > KEEP_SECONDS:
            self._write()

    def forget(self) -> None:
        """Drop the state of an earlier build, from the disk too: its files are about to be cut."""
        if self.state:
            (self.path / MANIFEST).unlink(missing_ok=True)
            os.fsync(self._lock)
            self.state = {}

    def column(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...] = (), length: int = 0
    ) -> ColumnFile:
        """Return a growing array in a file of the folder."""
        path = self.file(name)
        self._unsynced.add(path)
        return ColumnFile(path, dtype, shape, length)

    def _write(self) -> None:
        """Write the manifest, after all files that it names are on disk."""
        for path in self._unsynced:
            if path.exists():
                sync(path)
        document = {"format": FORMAT, "version": VERSION, "key": self._key, "state": self.state}
        content = json.dumps(document | {"digest": _digest(self.state)}).encode()
        with replacement(self.file(MANIFEST), force=True, size=len(content), mode=0o600) as draft:
            draft.write_bytes(content)
        self._kept = time.monotonic()

    def remove(self) -> None:
        """Remove the folder: the graph file is there, or nothing of the build can be used again."""
        if self.made:
            shutil.rmtree(self.path)

    def _claim(self) -> None:
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            self._lock = -1
            raise InputError(
                f"{self.path} belongs to another process that makes the same file; "
                "wait for it, or choose another output"
            ) from error

    def _found(self) -> tuple[dict[str, Any], str]:
        """Return the state of an earlier build, {} where it cannot be used, and then why not, "" if there was none."""
        if self._key is None or not (self.path / MANIFEST).exists():
            return {}, ""
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
            found = json.loads((self.path / MANIFEST).read_bytes())
            state: dict[str, Any] = found["state"]
            if found["digest"] == _digest(state):
                if (found["format"], found["version"]) != (FORMAT, VERSION):
                    return {}, "of another version of mgg"
                return (state, "") if found["key"] == self._key else ({}, "of other options or files")
        return {}, "damaged"

    def _empty(self, output: Path) -> None:
        if any(self.path.iterdir()) and not _is_own(self.path):
            self._let_go()
            raise InputError(
                f"{self.path} has files of others, and a build of {output} would use it; move them away, or choose "
                "another output"
            )
        for path in self.path.iterdir():
            path.unlink()


def _digest(state: Any) -> str:
    """Return the XXH3-128 of a manifest's state, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(json.dumps(state, sort_keys=True).encode())


class ColumnFile:
    """An array [n, ...] that grows at its end, in a file or in memory.

    Args: path: the file; None: in memory. length: entries that are there; a file that has more, since its writer was
    killed, is cut to them.
    """

    def __init__(
        self, path: Path | None, dtype: np.dtype[Any], shape: tuple[int, ...] = (), length: int = 0
    ) -> None:
        self.dtype, self.shape, self.length = dtype, shape, length
        self._path, self._held = path, list[NDArray[Any]]()
        if path is not None:
            self._file = path.open("ab", buffering=0)
            self._file.truncate(length * math.prod(shape) * dtype.itemsize)

    def append(self, values: NDArray[Any]) -> None:
        """Add entries at the end."""
        values = np.ascontiguousarray(values, self.dtype)
        if self._path is None:
            self._held.append(values.copy() if values.base is not None else values)
        else:
            _write(self._file, values)
        self.length += len(values)

    def pieces(self, entries: int) -> Iterator[NDArray[Any]]:
        """Yield all entries in order, in arrays of at most ``entries``."""
        if self._path is None:
            yield from self._held
            return
        for low in range(0, self.length, entries):
            high = min(low + entries, self.length)
            yield read_column(self._path, self.dtype, self.shape, 0, low, high)

    def close(self) -> None:
        if self._path is not None:
            self._file.close()


def _write(file: FileIO, values: NDArray[Any]) -> None:
    """Write a contiguous array. A call writes 2 GiB at most."""
    data = values.reshape(-1).view(np.uint8).data
    while len(data):
        data = data[file.write(data) :]


def read_column(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], start: int, low: int, high: int
) -> NDArray[Any]:
    """Return entries low .. high - 1 of an array that begins at byte ``start`` of a file."""
    row = math.prod(shape)
    values = np.fromfile(path, dtype, (high - low) * row, offset=start + low * row * dtype.itemsize)
    if len(values) < (high - low) * row:
        raise InputError(f"{path} has become shorter; remove its folder, and begin again")
    return values.reshape(high - low, *shape)
