"""Each family of kernels once, in a process of its own: what hangs or crashes is named within 20 s, and ends alone.

    python tests/gpu/smoke.py --json smoke.json                    on the GPU, in under a minute
    python tests/gpu/smoke.py --device shim --library _cuda.so     on the host

Beside the families, two ranks start NVSHMEM and sum, and a training is recorded as a CUDA graph. Exit codes are those
of run.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import programs

from gpu import result
from gpu.pes import table
from mgg_hpc.runtime import cores

FOLDER = Path(__file__).parent
# Operations of the table, one for each family of kernels: the others run the kernels of "sum".
FAMILIES = ("sum", "get", "halo", "sddmm", "gather", "dropout", *table.EDGES, *table.OTHERS)
CASE_SECONDS, SECONDS = 12.0, 20.0  # of a case within a process, and of the process
AT_ONCE = max(2, min(4, cores.available() // 2))  # processes, which take turns on the GPU


def programs_of(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the words of each process by what it shows, those that take longest first."""
    where = ["--small", "--device", arguments.device]
    where += ["--case-seconds", str(result.case_seconds(arguments, CASE_SECONDS))]
    where += ["--library", str(arguments.library)] if arguments.library else []
    few = ["--few"] if arguments.device == "shim" else []
    found = {
        "2 ranks start NVSHMEM": ["processes.py", "--ranks", "2", *where],
        "a training as a CUDA graph": ["training.py", "--ranks", "1", *where, *few],
    }
    return found | {name: ["run.py", "--operations", name, *where] for name in FAMILIES}


def failure_of(words: list[str], document: Path, seconds: float) -> str:
    """Run a process. Return what is wrong, or nothing."""
    try:
        command = [sys.executable, str(FOLDER / words[0]), *words[1:], "--json", str(document)]
        done = programs.run_limited(*command, seconds=seconds, env=dict(os.environ))
    except subprocess.TimeoutExpired as error:
        return f"{result.last_case(str(error.output)) or 'its start'}: did not end within {seconds:.0f} s"
    if done.returncode == 0 and result.lines_of(document):
        return ""
    return result.why_failed(done.stdout + done.stderr, done.returncode, document)


def main(words: list[str]) -> int:
    """See above."""
    arguments = result.parser(__doc__).parse_args(words)

    def part() -> int:
        with result.engine_of(arguments) as engine, tempfile.TemporaryDirectory(prefix="mgg-smoke-") as made:
            report = result.Report(arguments, engine.about())
            seconds = SECONDS * result.PATIENCE[arguments.device]

            def look(name: str, words: list[str]) -> tuple[str, float]:
                print(f"{result.CASE}{name}", flush=True)
                began = time.perf_counter()
                wrong = failure_of(words, Path(made) / f"{name}.json", seconds)
                return wrong, time.perf_counter() - began

            with ThreadPoolExecutor(AT_ONCE) as pool:
                asked = {
                    pool.submit(look, name, words): name for name, words in programs_of(arguments).items()
                }
                for ended in as_completed(asked):  # threads find; this one writes
                    name = asked[ended]
                    line = report.line(name, "float32")
                    wrong, line.seconds = ended.result()
                    line.add(name, 0.0, wrong)
                    report.write()
        return report.finish("each family of kernels, in a process of its own")

    return result.code_of(part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
