"""The folder in which a build keeps its runs, so that a build that was killed goes on where it was.

It lies beside the output, `.NAME.build`, with a `manifest.json` that says how far the build is. A lock on the folder
keeps a second build of the same output away; the system takes the lock from a process that is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ...errors import InputError
from ..atomic_write import replacement, sync

Progress = Callable[[str, int, int], None]  # (phase, done, total)

FORMAT, VERSION = "mgg-build", 1
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
            with suppress(InputError, OSError), _of(path):
                found.append(path)
    return found


def discard(path: Path) -> None:
    """Remove the folder of a build, unless a process works in it."""
    with suppress(InputError), _of(path) as work:
        work.remove()


def _of(path: Path) -> WorkFolder:
    """Return a build's folder, claimed, as it is. Raises InputError if another process works in it."""
    return WorkFolder(path.with_name(path.name[1 : -len(".build")]), None, take=False)


def _is_own(path: Path) -> bool:
    """Return whether a folder has files of a build, and nothing else."""
    names = [each.name for each in path.iterdir()]
    return bool(names) and all(_OWN.fullmatch(name) for name in names)


class WorkFolder:
    """The folder of one build, made when it is first needed. A context manager that gives up the lock.

    key: says from what the file is built, and how; what a build of another key has left is removed. Without a key
    nothing is taken over. state: what the manifest holds beside the key; ``keep`` writes it. take: whether to remove
    what cannot be used. keeps: whether an InputError leaves the folder: what it has stays right when the input is
    mended. Raises InputError while another process holds the lock, and for a folder with files of others.
    """

    def __init__(self, output: Path, key: str | None, *, take: bool = True) -> None:
        self.path, self._key, self._lock, self._takes = folder_of(output.resolve()), key, -1, take
        self.state: dict[str, Any] = {}
        self.keeps = False
        self._unsynced, self._kept = set[Path](), time.monotonic()
        if self.path.is_dir():
            self._claim()
            self.state = self._found() or {}
            if take and not self.state:
                self._empty(output)

    def __enter__(self) -> WorkFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is not None and self.made and self._takes:
                self._leave(kind)
        finally:
            self._let_go()

    def _leave(self, kind: type[BaseException]) -> None:
        """Keep what a later process can go on with, and nothing else."""
        useful = self._key is not None and self.state and (self.keeps or not issubclass(kind, InputError))
        if useful:
            with suppress(OSError, InputError):
                self._write()
                return
        self.remove()

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

    def write(self, name: str, columns: list[NDArray[Any]]) -> Path:
        """Write arrays one behind the other into a file; return its path."""
        path = self.file(name)
        write_columns(path, columns)
        self._unsynced.add(path)
        return path

    def keep(self, **state: Any) -> None:
        """Add to the state. The manifest is written when it was not for KEEP_SECONDS, or when an error ends the build.

        What the state names has to be written by then, by ``write`` or as a `ColumnFile` of this folder.
        """
        self.state |= state
        if self._key is not None and time.monotonic() - self._kept > KEEP_SECONDS:
            self._write()

    def column(self, name: str, dtype: np.dtype, shape: tuple[int, ...] = (), length: int = 0) -> ColumnFile:
        """Return a growing array in a file of the folder."""
        path = self.file(name)
        self._unsynced.add(path)
        return ColumnFile(path, dtype, shape, length)

    def _write(self) -> None:
        """Write the manifest; what it names is on disk before."""
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

    def _found(self) -> dict[str, Any] | None:
        """Return the state of an earlier build of the same key; None without, and for a damaged manifest."""
        if self._key is None:
            return None
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
            found = json.loads((self.path / MANIFEST).read_bytes())
            facts = found["format"], found["version"], found["key"], found["digest"]
            state: dict[str, Any] = found["state"]
            if facts == (FORMAT, VERSION, self._key, _digest(state)):
                return state
        return None

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
    """An array [n, ...] of one dtype in a file that grows at its end, or in memory.

    path: of the file; None: in memory. length: entries that are there; a file that has more, since its writer was
    killed, is cut to them.
    """

    def __init__(
        self, path: Path | None, dtype: np.dtype, shape: tuple[int, ...] = (), length: int = 0
    ) -> None:
        self.dtype, self.shape, self.length, self._held = dtype, shape, length, list[NDArray[Any]]()
        self._row = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._path, self._descriptor = path, -1
        if path is not None:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.ftruncate(self._descriptor, length * self._row)

    def append(self, values: NDArray[Any]) -> None:
        """Add entries at the end."""
        values = np.ascontiguousarray(values, self.dtype)
        if self._path is None:
            self._held.append(values.copy() if values.base is not None else values)
        else:
            _write(self._descriptor, values, self.length * self._row)
        self.length += len(values)

    def pieces(self, entries: int) -> Any:
        """Yield all entries in order, in arrays of at most ``entries``."""
        if self._path is None:
            yield from self._held
            return
        for low in range(0, self.length, entries):
            yield _read(
                self._descriptor, self.dtype, self.shape, low, min(low + entries, self.length), self._row
            )

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def write_columns(path: Path, columns: list[NDArray[Any]]) -> None:
    """Write arrays one behind the other."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        at = 0
        for column in columns:
            _write(descriptor, column, at)
            at += column.nbytes
    finally:
        os.close(descriptor)


def read_column(
    path: Path, dtype: np.dtype, shape: tuple[int, ...], start: int, low: int, high: int
) -> NDArray[Any]:
    """Return entries low .. high - 1 of an array that begins at byte ``start`` of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        row = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return _read(descriptor, dtype, shape, low, high, row, start)
    finally:
        os.close(descriptor)


def _write(descriptor: int, values: NDArray[Any], at: int) -> None:
    data = values.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + (1 << 30)], at + done)


def _read(
    descriptor: int, dtype: np.dtype, shape: tuple[int, ...], low: int, high: int, row: int, start: int = 0
) -> NDArray[Any]:
    values = np.empty((high - low, *shape), dtype)
    data, done = values.reshape(-1).view(np.uint8).data, 0
    while done < len(data):
        read = os.preadv(descriptor, [data[done : done + (1 << 30)]], start + low * row + done)
        if not read:
            raise InputError("a file of the build has become shorter; remove its folder, and begin again")
        done += read
    return values
