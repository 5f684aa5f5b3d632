"""The parts of `make gpu-contact`, `make gpu-test` and `make gpu-bench`: what runs, on which sources that depends, and
how long it is expected, and allowed, to take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MPS = (("processes", 2), ("processes", 4), ("training", 2))  # that run with a daemon of MPS, too
# The benchmarks of bench.py, and the seconds that each is expected to take.
BENCHES = {"aggregate": 60, "half-rows": 60, "overlap": 90, "epoch": 60}
BENCHES |= {"huge": 60, "start": 90, "traversal": 60}
CONTACT_BENCH = "aggregate-one"  # a graph of `aggregate`, at two widths

# What decides how a part ends: files and folders. All run these kernels, and what plans and launches them.
KERNELS: tuple[str, ...] = ("CMakeLists.txt", "cuda/cmake", "cuda/include", "cuda/runtime", "cuda/python")
KERNELS += ("cuda/gpu", "cuda/cpu", "mgg_hpc/plan", "mgg_hpc/runtime", "mgg_hpc/data")
TABLE = (*KERNELS, "mgg_hpc/reference.py", "cuda/bench", "mgg_hpc/tools/bench/overlap")
TABLE += ("tests/cases.py", "tests/memory.py", "tests/world.py", "tests/gpu/pes", "tests/gpu/result.py")
TABLE += ("tests/gpu/run.py", "mgg_hpc/traversal")
PROCESSES = (*TABLE, "tests/gpu/processes.py")
TRAINING = (
    *PROCESSES,
    "tests/gpu/training.py",
    "mgg_hpc/traversal",
    "mgg_hpc/nn",
    "mgg_hpc/training",
    "mgg_hpc/config.py",
)
BENCH = (*KERNELS, "cuda/bench", "tests/gpu/bench.py", "mgg_hpc/tools/bench/harness")
# The modules of a benchmark, by their path in mgg_hpc/tools, where it is not bench/NAME.
BENCH_SOURCES = {
    "half-rows": "bench/aggregate",
    CONTACT_BENCH: "bench/aggregate",
    "start": "bench/startup.py",
    "traversal": "study/traversal",
}
# And what these share with other benchmarks, or measure beside the kernels.
BENCH_MORE = {}
BENCH_MORE["traversal"] = ("mgg_hpc/traversal", "mgg_hpc/tools/study/plot.py", "mgg_hpc/tools/study/table.py")
BENCH_MORE |= {
    name: (shared, "mgg_hpc/nn", "mgg_hpc/training", "mgg_hpc/config.py")
    for name, shared in (("epoch", "mgg_hpc/tools/bench/baselines"), ("start", "mgg_hpc/tools/bench/epoch"))
}


@dataclass(frozen=True)
class Part:
    """A program of tests/gpu and its arguments.

    expected, limit: seconds; beyond the limit it hangs. sources: files and folders that decide how it ends.
    """

    name: str
    words: tuple[str, ...]
    expected: float
    limit: float
    sources: tuple[str, ...] = ()


def parts_of(kind: str, shim: Path | None, build: Path, seed: int) -> list[Part]:
    """Return the parts of "contact", "test" or "bench", on the GPU or over the shim, whose modules are in a folder."""
    if kind == "contact":
        return contact(shim, build, seed)
    return tests(shim, build, seed) if kind == "test" else [bench(name, shim, seed) for name in BENCHES]


def contact(shim: Path | None, build: Path, seed: int) -> list[Part]:
    """Return the parts of ten minutes: some of a test, which then are not run again, a short table, a benchmark."""
    there = {part.name: part for part in tests(shim, build, seed)}
    where = on_shim(shim, "plain") if shim else ()
    short = Part("short-table", program("run", "--small", "--seed", seed, *where), 15, 120, TABLE)
    one = bench(CONTACT_BENCH, shim, seed)
    return [there["smoke"], short, one, there["processes-2"], there["training-1"]]


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
    seconds, repeats = 40, 100
    if shim:
        plain += on_shim(shim, "plain")
        few, small, sanitized = ("--few",), ("--small",), on_shim(shim, "sanitized")
        faulty = ("--device", "shim", "--libraries", shim / "faulty")
        seconds, repeats = 5, 3

    def ranks(name: str, count: int, *more: str) -> Part:
        expected, limit = {"processes": (20, 120), "training": (40, 150)}[name]
        words = program(name, "--ranks", count, *more, *plain, *few)
        ending = "".join(word.replace("--", "-") for word in more)
        sources = PROCESSES if name == "processes" else TRAINING
        return Part(f"{name}-{count}{ending}", words, expected, limit, sources)

    def sanitizer(tool: str) -> Part:
        words = program("sanitize", tool, *(sanitized if tool == "memcheck" else plain))
        return Part(tool, words, 60, 300, (*TABLE, "tests/gpu/sanitize.py", "tests/programs.py"))

    again = ("--operations", "same bits", "--repeats", repeats, *small, *plain)
    random = program("random_graphs", "--seconds", seconds, *plain)
    faults = (
        *TABLE,
        "tests/gpu/sanitize.py",
        "tests/gpu/variants/faults.py",
        "tests/gpu/variants/edits.py",
        "tests/programs.py",
    )

    return [
        Part("smoke", program("smoke", *plain), 45, 250 if shim else 120, (*TRAINING, "tests/gpu/smoke.py")),
        Part("table", program("run", *small, *plain), 40, 300, TABLE),
        Part(
            "half-remote",
            program("run", "--remote-share", 0.5, *(small or ("--few",)), *plain),
            15,
            200,
            TABLE,
        ),
        Part("random", random, seconds + 5, seconds + 60, (*TABLE, "tests/gpu/random_graphs.py")),
        *(ranks("processes", count) for count in (1, 2, 4)),
        *(ranks("processes", count, "--unreached") for count in (2, 4)),
        *(ranks("training", count) for count in (1, 2)),
        *(ranks(*shared, "--mps") for shared in MPS if not shim),
        *map(sanitizer, TOOLS),
        Part("planted", program("sanitize", "planted", *faulty), 60, 250, faults),
        Part("many-repeats", program("run", *again), 20, 200, TABLE),
    ]


def bench(name: str, shim: Path | None, seed: int) -> Part:
    """Return a benchmark as a part. The shim's is tiny, and says nothing but that the program works."""
    where = on_shim(shim, "plain") if shim else ()
    expected = BENCHES.get(name, 45)
    sources = (*BENCH, f"mgg_hpc/tools/{BENCH_SOURCES.get(name, f'bench/{name}')}")
    sources += BENCH_MORE.get(name, ())
    return Part(
        name, program("bench", name, *where, "--seed", seed), expected, max(60.0, 4 * expected), sources
    )
