"""The parts of `make gpu-test` and `make gpu-bench`: what runs, and how long it is expected, and allowed, to take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MPS = (("processes", 2), ("processes", 4), ("training", 2))  # that run with a daemon of MPS, too
# The benchmarks of bench.py, and the seconds that each is expected to take.
BENCHES = {"aggregate": 60, "half-rows": 60, "overlap": 90, "epoch": 60, "sweep": 130, "sweep-narrow": 130}
BENCHES |= {"profile": 120, "huge": 60, "start": 90}


@dataclass(frozen=True)
class Part:
    """A program of tests/gpu and its arguments. expected, limit: seconds; beyond the limit it hangs."""

    name: str
    words: tuple[str, ...]
    expected: float
    limit: float


def parts_of(kind: str, shim: Path | None, build: Path, seed: int) -> list[Part]:
    """Return the parts of "test" or "bench", on the GPU or over the shim, whose modules are in a folder."""
    return tests(shim, build, seed) if kind == "test" else benches(shim, seed)


def program(name: str, *words: object) -> tuple[str, ...]:
    """Return the words of a program beside this one with its arguments."""
    return (str(Path(__file__).parent / f"{name}.py"), *map(str, words))


def on_shim(shim: Path, name: str) -> tuple[object, ...]:
    """Return the options of a program that takes one of the shim's modules."""
    return ("--device", "shim", "--library", shim / name / "_cuda.so")


def tests(shim: Path | None, build: Path, seed: int) -> list[Part]:
    """Return the parts of a test: the quick ones that find most come first.

    Over the shim tables are small, there is less time for random graphs, and no MPS.
    """
    plain: tuple[object, ...] = ("--seed", seed)
    few, small, sanitized, faulty = (), (), (), ("--library", build / "faulty" / "_cuda.so")
    seconds = 40
    if shim:
        plain += on_shim(shim, "plain")
        few, small, sanitized = ("--few",), ("--small",), on_shim(shim, "sanitized")
        faulty = ("--device", "shim", "--libraries", shim / "faulty")
        seconds = 5

    def ranks(name: str, count: int, *more: str) -> Part:
        expected, limit = {"processes": (20, 120), "training": (40, 150)}[name]
        words = program(name, "--ranks", count, *more, *plain, *few)
        ending = "".join(word.replace("--", "-") for word in more)
        return Part(f"{name}-{count}{ending}", words, expected, limit)

    def sanitizer(tool: str) -> Part:
        return Part(tool, program("sanitize", tool, *(sanitized if tool == "memcheck" else plain)), 60, 250)

    return [
        Part("table", program("run", *small, *plain), 40, 300),
        Part("half-remote", program("run", "--remote-share", 0.5, *(small or ("--few",)), *plain), 15, 200),
        Part("random", program("random_graphs", "--seconds", seconds, *plain), seconds + 5, seconds + 60),
        *(ranks("processes", count) for count in (1, 2, 4)),
        *(ranks("processes", count, "--unreached") for count in (2, 4)),
        *(ranks("training", count) for count in (1, 2)),
        *(ranks(*shared, "--mps") for shared in MPS if not shim),
        *map(sanitizer, TOOLS),
        Part("planted", program("sanitize", "planted", *faulty), 60, 250),
    ]


def benches(shim: Path | None, seed: int) -> list[Part]:
    """Return the parts of a benchmark. The shim's are tiny, and say nothing but that the programs work."""
    where = on_shim(shim, "plain") if shim else ()
    return [
        Part(name, program("bench", name, *where, "--seed", seed), expected, max(60.0, 4 * expected))
        for name, expected in BENCHES.items()
    ]
