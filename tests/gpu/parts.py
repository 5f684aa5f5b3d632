"""The parts of `make gpu-test` and `make gpu-bench`: what runs, and how long it is expected, and allowed, to take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclass(frozen=True)
class Part:
    """A program of tests/gpu and its arguments. expected, limit: seconds; beyond the limit it hangs."""

    name: str
    words: tuple[str, ...]
    expected: float
    limit: float


def parts_of(kind: str, shim: Path | None, build: Path, seed: int) -> list[Part]:
    """Of "test" or "bench", on the GPU or over the shim, whose modules are in a folder."""
    return tests(shim, build, seed) if kind == "test" else benches(shim, seed)


def program(name: str, *words: object) -> tuple[str, ...]:
    """A program beside this one, and its arguments."""
    return (str(Path(__file__).parent / f"{name}.py"), *map(str, words))


def tests(shim: Path | None, build: Path, seed: int) -> list[Part]:
    """The quick ones that find most come first. Over the shim small tables, and less time for random graphs."""
    plain: tuple[object, ...] = ("--seed", seed)
    few, sanitized, faulty = ("--few",), (), ("--library", build / "faulty" / "_cuda.so")
    if shim:
        plain += ("--device", "shim", "--library", shim / "plain" / "_cuda.so")
        sanitized = ("--device", "shim", "--library", shim / "sanitized" / "_cuda.so")
        faulty = ("--device", "shim", "--libraries", shim / "faulty")
    size, small = ((), few) if not shim else (("--small",), ("--small",))
    seconds = 5 if shim else 40

    def processes(name: str, ranks: int, *more: str) -> Part:
        return Part(
            name, program("processes", "--ranks", ranks, *more, *plain, *(few if shim else ())), 20, 120
        )

    def training(name: str, ranks: int, *more: str) -> Part:
        return Part(
            name, program("training", "--ranks", ranks, *more, *plain, *(few if shim else ())), 40, 150
        )

    def sanitizer(tool: str) -> Part:
        return Part(tool, program("sanitize", tool, *(sanitized if tool == "memcheck" else plain)), 60, 250)

    return [
        Part("table", program("run", *size, *plain), 40, 300),
        Part("half-remote", program("run", "--remote-share", 0.5, *small, *plain), 15, 200),
        Part("random", program("random_graphs", "--seconds", seconds, *plain), seconds + 5, seconds + 60),
        processes("processes-1", 1),
        processes("processes-2", 2),
        processes("processes-4", 4),
        processes("processes-2-unreached", 2, "--unreached"),
        processes("processes-4-unreached", 4, "--unreached"),
        training("training-1", 1),
        training("training-2", 2),
        *(
            []
            if shim
            else [
                processes("processes-2-mps", 2, "--mps"),
                processes("processes-4-mps", 4, "--mps"),
                training("training-2-mps", 2, "--mps"),
            ]
        ),
        *map(sanitizer, TOOLS),
        Part("planted", program("sanitize", "planted", *faulty), 60, 250),
    ]


def benches(shim: Path | None, seed: int) -> list[Part]:
    """The shim's are tiny, and say nothing but that the programs work."""
    where = ("--device", "shim", "--library", shim / "plain" / "_cuda.so") if shim else ()

    def bench(name: str, expected: float) -> Part:
        return Part(name, program("bench", name, *where, "--seed", seed), expected, max(60.0, 4 * expected))

    return [
        bench("aggregate", 60),
        bench("half-rows", 60),
        bench("overlap", 90),
        bench("epoch", 60),
        bench("sweep", 130),
        bench("sweep-narrow", 130),
        bench("profile", 120),
        bench("huge", 60),
        bench("start", 90),
    ]
