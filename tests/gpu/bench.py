"""Run the benchmarks of a GPU, with the options of `make gpu-bench`.

    python tests/gpu/bench.py --results build/gpu/results                       those that have no result yet
    python tests/gpu/bench.py aggregate overlap --results build/gpu/results     these, again
    python tests/gpu/bench.py --device shim --results build/shim/results        tiny ones, over the shim

Each is a process, which is ended where it takes longer than it may. NAME.json and NAME.md are its results,
NAME.partial.json those of one that did not end, NAME.log its output. Exit code 0: all were measured; 1: some failed; 3:
some were left for lack of time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import programs

ROOT = Path(__file__).parents[2]
SECONDS = 540.0  # of all; others are left for the next call
CONTACT = "aggregate-one"  # which `make gpu-contact` runs


@dataclass(frozen=True)
class Bench:
    """A script of benchmarks/ and its arguments everywhere, on a GPU, and over the shim. expected: seconds."""

    words: str
    gpu: str = ""
    shim: str = ""
    expected: float = 60.0


REAL = "rmat:20:16 uniform:20:16 {real}"
TINY = "--turns 2 --peers none rmat:6:4 uniform:5"
BENCHES = {
    "aggregate": Bench("aggregate --device cuda", f"{REAL} --widths 128,16,64,256", f"{TINY} --widths 16,64"),
    CONTACT: Bench(
        "aggregate --device cuda",
        "rmat:20:16 --widths 128,16 --peers cusparse",
        "rmat:6:4 --widths 16 --peers none --turns 2",
    ),
    "half-rows": Bench(
        "aggregate --device cuda --dtypes float32,bfloat16 --peers none",
        f"{REAL} --widths 64,128,256",
        f"{TINY} --widths 64,128",
    ),
    "overlap": Bench(
        "studies/exchanges transfers --device cuda",
        "--widths 128 --share 0 --share 0.01 --share 0.02 --share 0.05 --share 0.1 --share 0.2 --share 0.5",
        "uniform:6:4 --widths 33 --share 0 --share 0.2 --share 0.5 --turns 2",
        90,
    ),
    "epoch": Bench(
        "epoch --device cuda",
        "rmat:20:16",
        "rmat:6:4 --features 12 --hidden 5 --classes 7 --peers none --turns 2",
    ),
    # What training takes before its first epoch; over the shim, on the CPU.
    "start": Bench("start", "--backend cuda", "rmat:6:8 --backend serial --turns 2", 90),
    "traversal": Bench(
        "studies/traversal --device cuda",
        "rmat:22:16 uniform:22:16 {real} --sources 8",
        "rmat:6:4 --sources 1",
    ),
    "gather": Bench("tiers link", shim="--mib 1 --count 60 --turns 2 --sizes 1024,1028"),
}
DRAWN = ("aggregate", "half-rows", "overlap", "epoch")


def command(name: str, results: Path, device: str) -> list[str]:
    """Return the command line of a benchmark."""
    chosen = BENCHES[name]
    # cnr_2000 (a web graph), where MGG_DATA names a folder that has it.
    real = Path(os.environ.get("MGG_DATA", "")) / "cnr_2000" / "cnr_2000.npz"
    script, *words = [*chosen.words.split(), *(chosen.shim if device == "shim" else chosen.gpu).split()]
    words = [word.format(real=real) for word in words if word != "{real}" or real.is_file()]
    kinds = [".json", ".md", *([".svg"] if name in DRAWN and find_spec("matplotlib") else [])]
    files = [word for kind in kinds for word in ("-o", str(results / f"{name}.partial{kind}"))]
    shim = [str(Path(__file__).with_name("on_shim.py"))] if device == "shim" else []
    return [sys.executable, *shim, str(ROOT / "benchmarks" / f"{script}.py"), *words, *files]


def run(name: str, results: Path, device: str, seconds: float) -> bool:
    """Run one benchmark, and print how it ended. Return whether it measured everything."""
    log, began = results / f"{name}.log", time.monotonic()
    try:
        done = programs.run_limited(*command(name, results, device), seconds=seconds)
        code, said = done.returncode, f"{done.stdout}\n{done.stderr}"
    except subprocess.TimeoutExpired as error:
        code, said = -1, f"{error.output}\ndid not end within {seconds:.0f} s"
    log.write_text(said)
    if code == 0:
        for path in results.glob(f"{name}.partial.*"):
            path.rename(path.with_name(path.name.replace(".partial", "")))
    last = (said.strip().splitlines() or ["it printed nothing"])[-1]
    ended = "measured" if code == 0 else f"failed: {last} ({log})"
    print(f"{name}: {ended}, {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


def main(words: list[str]) -> int:
    """See above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--device", choices=("cuda", "shim"), default="cuda")
    parser.add_argument("--results", type=Path, default=Path("build/gpu/results"))
    parser.add_argument("--until", type=float, help=f"seconds since the epoch [default: in {SECONDS:.0f} s]")
    given = parser.parse_args(words)
    if unknown := [name for name in given.names if name not in BENCHES]:
        parser.error(f"no benchmark {unknown[0]!r}; expected {', '.join(BENCHES)}")
    given.results.mkdir(parents=True, exist_ok=True)
    until = given.until or time.time() + SECONDS
    absent = [name for name in BENCHES if name != CONTACT and not (given.results / f"{name}.json").exists()]
    failed, left = False, []
    for name in given.names or absent:
        if time.time() + BENCHES[name].expected > until:
            left.append(name)
        elif not run(name, given.results, given.device, max(1.0, until + 20 - time.time())):
            failed = True
    if left:
        print(f"gpu-bench: not run for lack of time: {', '.join(left)}; run the same again", file=sys.stderr)
    return 1 if failed else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
