"""The options that all benchmarks have, and lists on the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ....errors import InputError
from . import graphs, plots

LARGEST_WIDTH = 2**16


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Baselines, turns, threads, pages, and the files that are written."""

    peers: str = "none"
    peers_env: Path | None = None
    threads: int = 0
    turns: int = 0
    pages: str = ""
    json: Path | None = None
    table: Path | None = None
    plot: Path | None = None

    def check(self, *names: str) -> None:
        """Raise InputError for graphs and files that cannot be, and under a launcher, before anything is measured.

        A benchmark's workers are processes of one machine, and two benchmarks at once would disturb each other.
        """
        self.check_files()
        if os.environ.get("MGG_RANKS", "1") != "1":
            raise InputError(
                "this benchmark runs by itself, without a launcher; for ranks there is mgg bench overlap"
            )
        for name in names:
            graphs.check(name)

    def check_files(self) -> None:
        """Raise InputError for a file that cannot be written."""
        for path in (self.json, self.table, self.plot):
            if path is not None and not path.absolute().parent.is_dir():
                raise InputError(f"{path}: there is no folder {path.parent}")
        if self.plot is not None:
            plots.load()


def words_of(option: str, text: str, known: Iterable[str], *, none: bool = False) -> list[str]:
    """Return the words in a comma-separated list, each once. Raises InputError for one that is not known.

    none: "none" is an empty list.
    """
    found = [] if none and text == "none" else [word.strip() for word in text.split(",")]
    for word in found:
        if word not in known:
            expected = ", ".join((*["none"] * none, *known))
            raise InputError(f"--{option} {text}: {word!r} is not one of {expected}")
    return list(dict.fromkeys(found))


def numbers_of(option: str, text: str, largest: int = LARGEST_WIDTH) -> list[int]:
    """Return the numbers in a comma-separated list. Raises InputError for anything but 1 .. ``largest``."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isdecimal() and 1 <= int(word) <= largest):
            raise InputError(f"--{option} {text}: {word!r}; expected numbers of 1 .. {largest}")
    return [int(word) for word in words]
