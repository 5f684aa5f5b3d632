"""Calls of the system that move fewer bytes than were asked for, and the order in which files are committed."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np


def move_little(monkeypatch, rng: np.random.Generator, *, unit: int = 1, most: int = 40, copies=None) -> None:
    """Have reads and writes of files move at most ``most`` units of bytes a call, as POSIX allows.

    copies: error number with which os.copy_file_range fails. [default: it copies as few bytes]
    """
    few = lambda count: min(count, unit * int(rng.integers(1, most + 1)))  # noqa: E731
    pread, preadv, write, pwrite, copy = os.pread, os.preadv, os.write, os.pwrite, os.copy_file_range

    def copied(source, target, count, *places):
        if copies is not None:
            raise OSError(copies, os.strerror(copies))
        return copy(source, target, few(count), *places)

    def filled(file, buffers, *rest):
        (buffer,) = buffers
        return preadv(file, [memoryview(buffer)[: few(len(buffer))]], *rest)

    monkeypatch.setattr(os, "pread", lambda file, count, at: pread(file, few(count), at))
    monkeypatch.setattr(os, "preadv", filled)
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: few(len(data))]))
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[: few(len(data))], at))
    monkeypatch.setattr(os, "copy_file_range", copied)


class Commits:
    """Checks each renaming: what gets its name is on disk as it is, and so is the name in the end.

    named: the paths that files got. with_files: names of files which promise that all others of their folder are on
    disk before them.
    """

    def __init__(self, monkeypatch, with_files: tuple[str, ...] = ()) -> None:
        self.named: list[Path] = []
        self._synced: dict[Path, int] = {}
        self._open: set[Path] = set()  # folders with a new name that is not on disk
        self._with_files = with_files
        fsync, replace = os.fsync, os.replace

        def synced(file):
            path = Path(f"/proc/self/fd/{file}").readlink()
            if path.is_dir():
                self._open.discard(path)
            else:
                self._synced[path] = checksum(path)
            fsync(file)

        def renamed(source, target, **options):
            source, target = Path(source).resolve(), Path(target).resolve()
            others = target.parent.iterdir() if target.name in self._with_files else ()
            for path in (source, *(each for each in others if each != target)):
                assert self._synced.get(path) == checksum(path), f"{path.name} is not on disk as it is"
            replace(source, target, **options)
            self._synced[target] = self._synced[source]
            self._open.add(target.parent)
            self.named.append(target)

        for name, call in (("fsync", synced), ("replace", renamed), ("rename", renamed)):
            monkeypatch.setattr(os, name, call)

    def check(self, *paths: Path) -> None:
        """Assert that just these paths got their names, in this order, and that the names are on disk."""
        assert self.named == [path.resolve() for path in paths]
        assert not self._open, "a folder with a new name is not on disk"


def checksum(path: Path) -> int:
    return zlib.crc32(path.read_bytes())
