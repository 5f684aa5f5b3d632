"""Graphs of real size on little memory: the time and the peak memory of imports, drawings, partitions and plans.

    python benchmarks/real_size.py --folder /data/scratch -o real_size.json       # 100 million edges
    python benchmarks/real_size.py --parts text,rmat --edges 1e7

Parts: text (a list of edges; and SciPy, networkx and PyG on 5 million of them, where this Python has them), ogb (files
in OGB's own formats, of two sizes), rmat, partition, plan (of one of 8 ranks, with self loops), read (the slices of 8
ranks). Commands may take 2 GiB of memory, imports of OGB's files 1 GiB. Each runs in a process of its own, whose peak
memory the system reports. The floor is the time of the bytes that have to be read from the page cache, where files are
that were just written, and written to the folder until they are safe there, at its speed just before; for plans, of
those that have to be read and written in memory, at the speed at which all cores read.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
from harness import children, command, run
from harness.memory import alone, peak_from_now, status

from mgg_hpc.data.store import open_graph
from mgg_hpc.plan import adjacency, halo, workload
from mgg_hpc.plan.ranges import edge_balanced
from mgg_hpc.runtime import cores
from mgg_hpc.runtime.backends import native
from mgg_hpc.runtime.backends.host.components import aligned_zeros
from mgg_hpc.tools.bench.results import Results, Row, output_files, words_of

LINES = 1 << 20  # of a list, written at a time
PEER_EDGES = 5_000_000
COPIED = 256 << 20  # bytes that measure the folder's speed
RANKS, ROUNDS = 8, 8


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
    said = children.output([sys.executable, "-c", MEASURE, sys.executable, *words], what)
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


def write_list(path: Path, edges: int) -> None:
    """Write a list of random edges, a line each; a node has 10."""
    rng, nodes = np.random.default_rng(0), max(2, edges // 10)
    with path.open("w") as file:
        for low in range(0, edges, LINES):
            pairs = rng.integers(nodes, size=(min(LINES, edges - low), 2))
            file.write(("%d %d\n" * len(pairs)) % tuple(pairs.reshape(-1).tolist()))


def text(folder: Folder, edges: int) -> Iterator[Row]:
    """Import a text list; and have other libraries convert one of 5 million edges."""
    source, target, few = folder.path / "edges.txt", folder.path / "edges.h5", min(edges, PEER_EDGES)
    for count in (edges, few):
        write_list(source, count)
        ours = mgg("import --memory 2G --force", source, "-o", target)
        size, written = source.stat().st_size, target.stat().st_size
        yield {"case": f"{count:,} edges, {size / 1e9:.2f} GB"} | ours | folder.floor(size, written)
    for name, program in PEERS.items():
        case = {"case": f"{few:,} edges, {name}"}
        if find_spec(name):
            theirs = measured(name, "-c", program, source, folder.path / "peer.npz")
            yield case | theirs | {"note": f"{theirs['seconds'] / ours['seconds']:.1f} times ours"}
        else:
            yield case | {"note": f"left out: {sys.executable} has no {name}"}
    for path in (source, target, folder.path / "peer.npz"):
        path.unlink(missing_ok=True)


# The shortest programs that libraries' documentation has: a list of text to a CSR in a file. By the library's module.
PEERS = {
    "scipy": """
import sys, numpy as np, scipy.sparse as sp
pairs = np.loadtxt(sys.argv[1], dtype=np.int64)
shape = (pairs.max() + 1,) * 2
matrix = sp.coo_matrix((np.ones(len(pairs), bool), (pairs[:, 1], pairs[:, 0])), shape)
sp.save_npz(sys.argv[2], matrix.tocsr(), compressed=False)
""",
    "networkx": """
import sys, networkx as nx, scipy.sparse as sp
graph = nx.read_edgelist(sys.argv[1], nodetype=int, create_using=nx.DiGraph, data=False)
sp.save_npz(sys.argv[2], sp.csr_matrix(nx.to_scipy_sparse_array(graph, weight=None)), compressed=False)
""",
    "torch_geometric": """
import sys, numpy as np, torch
from torch_geometric.utils import to_torch_csr_tensor
pairs = torch.from_numpy(np.loadtxt(sys.argv[1], dtype=np.int64)).t()
torch.save(to_torch_csr_tensor(pairs.flip(0)), sys.argv[2])
""",
}

# Datasets of OGB: form of the files, edges a node, features, classes, and how many times fewer edges are drawn.
OGB = {
    "ogbn-arxiv as text": ("text", 1_166_243 / 169_343, 128, 40, 40),
    "ogbn-papers100M as binary": ("binary", 1_615_685_872 / 111_059_956, 128, 172, 2),
}
WRITER = Path(__file__).parents[1] / "tests/data/readers_arrays/ogb_files.py"


def ogb(folder: Folder, edges: int) -> Iterator[Row]:
    """Import OGB's two forms of files, each of one size and of a size four times larger."""
    source, target = folder.path / "dataset", folder.path / "ogb.h5"
    for name, (form, edges_a_node, features, classes, fewer) in OGB.items():
        for listed in (edges // fewer // 4, edges // fewer):
            nodes = max(100, round(listed / edges_a_node))
            measured(WRITER.name, WRITER, form, source, nodes, listed, features, classes)
            size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
            done = mgg("import --format ogb --memory 1G", source, "-o", target)
            case = f"{name}, {listed:,} edges, {nodes:,} nodes, {size / 1e9:.2f} GB"
            yield {"case": case} | done | folder.floor(size, target.stat().st_size)
            shutil.rmtree(source)
            target.unlink()


def generated(folder: Folder, edges: int) -> tuple[Path, Row]:
    """Make a recursive-matrix graph of about so many stored edges, once; return it, and what that took."""
    target, scale = folder.path / "rmat.h5", max(1, round(np.log2(edges / 25)))
    factor = max(1, round(edges / 2**scale / 1.92))
    words = f"generate rmat --scale {scale} --edge-factor {factor} --memory 2G"
    return target, {} if target.exists() else mgg(words, "-o", target)


def rmat(folder: Folder, edges: int) -> Iterator[Row]:
    """Write a recursive-matrix graph."""
    target, done = generated(folder, edges)
    with open_graph(target) as opened:
        case = f"{opened.nodes:,} nodes, {opened.edges:,} stored edges"
    yield {"case": case} | done | folder.floor(0, target.stat().st_size)


def partition(folder: Folder, edges: int) -> Iterator[Row]:
    """Find row ranges of 8 ranks from indptr alone; and run the command, which adds them to the file."""
    target = generated(folder, edges)[0]
    with open_graph(target) as opened:
        indptr = opened.indptr()
    began = time.perf_counter()
    edge_balanced(indptr, RANKS)
    yield {"case": f"ranges of {RANKS} ranks", "seconds": round(time.perf_counter() - began, 4)}
    done = mgg(f"partition -n {RANKS}", target)
    yield {"case": f"mgg partition -n {RANKS}"} | done | folder.floor(8 * len(indptr), 0)


def plan(folder: Folder, edges: int) -> Iterator[Row]:
    """Plan for one of 8 ranks, in a process of its own."""
    yield from alone(plan_of_rank, generated(folder, edges)[0])


def plan_of_rank(file: Path) -> list[Row]:
    """Plan for rank 0; return the rows. Peaks are above what was held before the rank's edges were read."""
    with open_graph(file) as opened:
        bounds, nothing = edge_balanced(opened.indptr(), RANKS), np.zeros(1, np.int64)
        workload.split(0, np.zeros(2, np.int64), nothing, nothing[:0])  # loads what the first call loads
        peak_from_now()
        before = status("VmRSS")
        part = opened.slice(0, int(bounds[1]), dense=False)
    count, began = len(part.indices), time.perf_counter()
    indptr, indices, _ = adjacency.with_self_loops(0, part.indptr, part.indices, None)
    del part
    edges = workload.split(0, bounds, indptr, indices)
    del indptr, indices
    seconds, peaks = [time.perf_counter() - began], [status("VmHWM") - before]
    peak_from_now()
    began = time.perf_counter()
    made = halo.in_rounds(edges, ROUNDS, ordered=False)[0]
    seconds.append(time.perf_counter() - began)
    peaks.append(status("VmHWM") - before)
    moved = aligned_zeros(8 * count)  # each edge is read and written once
    moved.fill(1)
    floor = min(native.load().stream_read(moved, cores.available())[0] for _ in range(3))
    unit, columns = 4 * count, ("case", "note", "seconds", "peak_mib", "floor_seconds")
    beside = peaks[1] - 50 * len(edges.halo) - 32 * len(made.segments)
    cases = (
        f"rank 0 of {RANKS}, {count:,} edges, {edges.destinations:,} rows",
        f"its halo of {len(edges.halo):,} rows in {ROUNDS} rounds, {len(made.segments):,} segments",
    )
    notes = (
        f"{peaks[0] / unit:.2f} times 4 bytes an edge, with the given edges",
        f"{beside / unit:.2f} times, beside 50 bytes a row of the halo and 32 a segment",
    )
    found = zip(cases, notes, seconds, [peak >> 20 for peak in peaks], [floor] * 2, strict=True)
    return [dict(zip(columns, row, strict=True)) for row in found]


def read(folder: Folder, edges: int) -> Iterator[Row]:
    """Count the bytes that each of 8 ranks reads of the file, beside the bytes of its slice."""
    target, io, most = generated(folder, edges)[0], Path("/proc/self/io"), 0.0
    with open_graph(target) as opened:
        for low, high in itertools.pairwise(edge_balanced(opened.indptr(), RANKS).tolist()):
            before = io.read_text()
            part = opened.slice(low, high)
            count = int(io.read_text().split()[1]) - int(before.split()[1])
            most = max(most, count / (part.indptr.nbytes + part.indices.nbytes))
    yield {"case": f"slices of {RANKS} ranks", "note": f"{100 * (most - 1):.2f} percent more is read at most"}


PARTS: dict[str, Callable[[Folder, int], Iterator[Row]]] = {
    each.__name__: each for each in (text, ogb, rmat, partition, plan, read)
}


@command(__doc__)
@click.option("--parts", default=",".join(PARTS), show_default=True, help="What is measured.")
@click.option(
    "--edges", type=click.FloatRange(100), default=1e8, show_default=True, help="Of the large graphs."
)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), help="[default: temporary]"
)
@output_files(pictures=False)
def main(parts: str, edges: float, folder: Path | None, files: tuple[Path, ...]) -> None:
    chosen = words_of("parts", parts, PARTS)
    with tempfile.TemporaryDirectory(prefix="mgg-bench-", dir=folder) as made:
        place = Folder(Path(made))
        speeds = {"write_mb_per_s": place.write, "page_cache_mb_per_s": place.read}
        results = Results("graphs of real size", **{name: round(of / 1e6) for name, of in speeds.items()})
        for part in chosen:
            results.rows += [{"part": part, **row} for row in PARTS[part](place, int(edges))]
            results.write(files)  # what is measured stays, whatever ends the rest
    results.show()


if __name__ == "__main__":
    run(main)
