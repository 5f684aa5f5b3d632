"""Random damage of bytes, and trials of readers with damaged files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torture.report import record

from damaged.watched import Worker


def changed(data: bytearray, rng: np.random.Generator, words: Sequence[str], near: int) -> str:
    """Flip, delete, insert, repeat, cut or exchange bytes, once or a few times; return the changes in words.

    words: texts that are put in the place of others. near: changes often lie within so many bytes of the beginning.
    """
    story = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 5]))):
        at = int(rng.integers(min(len(data), int(rng.choice([16, near, 1 << 30]))))) if data else 0
        end = min(len(data), at + int(rng.choice([1, 2, 9, 100])))
        how = str(rng.choice(["flip", "byte", "delete", "insert", "word", "word", "twice", "cut"]))
        story.append(f"{how} {at} {end}")
        if how == "flip" and data:
            data[at] ^= 1 << int(rng.integers(8))
        elif how == "byte":
            data[at:end] = bytes(rng.integers(256, size=end - at).tolist())
        elif how == "delete":
            del data[at:end]
        elif how == "insert":
            data[at:at] = bytes(rng.integers(256, size=end - at).tolist())
        elif how == "word":
            data[at : at + int(rng.integers(3))] = str(rng.choice(words)).encode(errors="surrogateescape")
        elif how == "twice":
            data[at:at] = data[at:end] * int(rng.choice([1, 3, 1000]))
        elif how == "cut":
            del data[at:]
    return ", ".join(story)


def try_mutants(
    what: str,
    worker: Worker,
    make: Callable[[int], str],
    path: Path,
    seeds: np.ndarray,
    *,
    taken: tuple[float, float],
) -> None:
    """Check that each mutant is taken, or refused in one line that names it.

    make: makes the mutant of a seed at ``path``, a file or a folder, and returns its story.
    taken: lower and upper limit of the share of mutants that are taken, since most changes matter and some do not. Both
    leave room for four standard deviations of the count.
    """
    began, failures, sound, slowest = time.monotonic(), [], 0, 0.0
    for seed in seeds.tolist():
        story = make(seed)
        asked = time.monotonic()
        answer = worker.ask(path)
        slowest = max(slowest, time.monotonic() - asked)
        sound += answer.kind == "taken"
        if answer.failed:
            failures.append(f"{story}: {answer.kind}: {answer.said}")
        if path.is_dir():
            shutil.rmtree(path)
    record(
        what,
        len(seeds),
        len(failures),
        seconds=round(time.monotonic() - began, 1),
        taken=sound,
        slowest=round(slowest, 2),
    )
    assert not failures, "\n".join(failures)
    for count, share in ((sound, taken[0]), (len(seeds) - sound, 1 - taken[1])):
        least = share * len(seeds)
        assert count >= least - 4 * least**0.5
