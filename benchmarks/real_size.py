"""Graphs of real size on little memory: the time and the peak memory of imports, drawings and partitions.

    python benchmarks/real_size.py --folder /data/scratch -o real_size.json       # 100 million edges
    python benchmarks/real_size.py --parts text,rmat --edges 1e7

Parts: text (a list of edges, and SciPy on 5 million of them), ogb (files in OGB's own formats, of two sizes), rmat (a
recursive-matrix graph is written, and its ranges of 8 ranks are added). Commands may take 2 GiB of memory, imports of
OGB's files 1 GiB. Each runs in a process of its own, whose peak memory the system reports. The floor is the time of the
bytes that have to be read from the page cache, where files are that were just written, and written to the folder until
they are safe there, at its speed just before.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
from harness import command, options, run
from harness.processes import output
from harness.results import Results, Row, output_files

from mgg_hpc.data.store import open_graph
from mgg_hpc.plan.row_ranges import edge_balanced

LINES = 1 << 20  # of a list, written at a time
PEER_EDGES = 5_000_000
COPIED = 256 << 20  # bytes that measure the folder's speed
RANKS = 8


class Folder:
    """A folder in which files are written, and the bytes a second at which one was written and read."""

    def __init__(self, path: Path) -> None:
        self.path, data = path, np.ones(COPIED, np.uint8)
        with (path / "speed").open("w+b") as file:
            began = time.perf_counter()
            file.write(data.data)
            file.flush()
            os.fsync(file.fileno())  # as `mgg` ends a file
            wrote = time.perf_counter()
            file.seek(0)
            file.readinto(data.data)  # from the page cache
            self.write, self.read = COPIED / (wrote - began), COPIED / (time.perf_counter() - wrote)
        (path / "speed").unlink()

    def floor(self, read: int, written: int) -> Row:
        """Return the column of the seconds that reading and writing so many bytes take."""
        return {"floor_seconds": round(read / self.read + written / self.write, 3)}


def measured(what: str, *words: object) -> Row:
    """Run Python; return the columns of its seconds and the peak of its memory. Raises InputError if it fails."""
    said = output([sys.executable, "-c", MEASURE, sys.executable, *words], what)
    seconds, peak = said.splitlines()[-1].split()
    return {"seconds": round(float(seconds), 3), "peak_mib": int(peak) >> 20}


def mgg(words: str, *more: object) -> Row:
    """Run `mgg`; return the same columns."""
    return measured(f"mgg {words}", "-m", "mgg_hpc", *words.split(), *more)


# In a small process of its own: a child's peak is not below what its parent held as it was started.
MEASURE = """
import os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:])
_, status, used = os.wait4(process.pid, 0)
seconds = time.perf_counter() - began
print(seconds, used.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""

# The shortest program that SciPy's documentation has: a list of text to a CSR in a file.
SCIPY = """
import sys, numpy as np, scipy.sparse as sp
pairs = np.loadtxt(sys.argv[1], dtype=np.int64)
shape = (pairs.max() + 1,) * 2
matrix = sp.coo_matrix((np.ones(len(pairs), bool), (pairs[:, 1], pairs[:, 0])), shape)
sp.save_npz(sys.argv[2], matrix.tocsr(), compressed=False)
"""

# Datasets of OGB: form of the files, edges a node, features, classes, and how many times fewer edges are drawn.
OGB = {
    "ogbn-arxiv as text": ("text", 1_166_243 / 169_343, 128, 40, 40),
    "ogbn-papers100M as binary": ("binary", 1_615_685_872 / 111_059_956, 128, 172, 2),
}
WRITER = Path(__file__).parents[1] / "tests/data/readers/ogb_files.py"


def text(folder: Folder, edges: int) -> Iterator[Row]:
    """Import a list of random edges, 10 a node; and have other libraries convert one of 5 million edges."""
    source, target, few = folder.path / "edges.txt", folder.path / "edges.h5", min(edges, PEER_EDGES)
    for count in (edges, few):
        rng = np.random.default_rng(0)
        with source.open("wb") as file:
            for low in range(0, count, LINES):
                np.savetxt(file, rng.integers(max(2, count // 10), size=(min(LINES, count - low), 2)), "%d")
        ours = mgg("import --memory 2G --force", source, "-o", target)
        size, written = source.stat().st_size, target.stat().st_size
        yield {"case": f"{count:,} edges, {size / 1e9:.2f} GB"} | ours | folder.floor(size, written)
    yield {"case": f"{few:,} edges, SciPy"} | measured("SciPy", "-c", SCIPY, source, folder.path / "peer.npz")


def ogb(folder: Folder, edges: int) -> Iterator[Row]:
    """Import OGB's two forms of files, each of one size and of a size four times larger."""
    source, target = folder.path / "dataset", folder.path / "ogb.h5"
    for name, (form, edges_a_node, features, classes, fewer) in OGB.items():
        for listed in (edges // fewer // 4, edges // fewer):
            nodes = max(100, round(listed / edges_a_node))
            measured(WRITER.name, WRITER, form, source, nodes, listed, features, classes)
            size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
            done = mgg("import --format ogb --memory 1G --force", source, "-o", target)
            case = f"{name}, {listed:,} edges, {nodes:,} nodes, {size / 1e9:.2f} GB"
            yield {"case": case} | done | folder.floor(size, target.stat().st_size)
            shutil.rmtree(source)


def rmat_file(target: Path, edges: float, *more: str) -> tuple[Row, str]:
    """Write a recursive-matrix graph of about so many stored edges; return the columns of `mgg`, and what it has."""
    scale = max(1, round(np.log2(edges / 25)))
    factor = max(1, round(edges / 2**scale / 1.92))
    done = mgg(f"generate rmat --scale {scale} --edge-factor {factor} --memory 2G", *more, "-o", target)
    with open_graph(target) as opened:
        return done, f"{opened.nodes:,} nodes, {opened.edges:,} stored edges"


def rmat(folder: Folder, edges: int) -> Iterator[Row]:
    """Write a recursive-matrix graph; find its ranges of 8 ranks from indptr alone, and by the command."""
    target = folder.path / "rmat.h5"
    done, case = rmat_file(target, edges)
    with open_graph(target) as opened:
        indptr = opened.indptr()
    yield {"case": case} | done | folder.floor(0, target.stat().st_size)
    began = time.perf_counter()
    edge_balanced(indptr, RANKS)
    yield {"case": f"ranges of {RANKS} ranks", "seconds": round(time.perf_counter() - began, 4)}
    done = mgg(f"partition -n {RANKS}", target)
    yield {"case": f"mgg partition -n {RANKS}"} | done | folder.floor(8 * len(indptr), 0)


PARTS: dict[str, Callable[[Folder, int], Iterator[Row]]] = {each.__name__: each for each in (text, ogb, rmat)}


@command(__doc__)
@options.words("parts", PARTS, "What is measured.")
@click.option("--edges", type=click.FloatRange(100), default=1e8, help="At most.")
@options.folder()
@output_files(pictures=False)
def main(parts: list[str], edges: float, folder: Path | None, files: tuple[Path, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="mgg-bench-", dir=folder) as made:
        place = Folder(Path(made))
        speeds = {"write_mb_per_s": place.write, "page_cache_mb_per_s": place.read}
        results = Results("graphs of real size", **{name: round(of / 1e6) for name, of in speeds.items()})
        for part in parts:
            results.rows += [{"part": part, **row} for row in PARTS[part](place, int(edges))]
            results.write(files)  # what is measured stays, whatever ends the rest
    results.show()


if __name__ == "__main__":
    run(main)
