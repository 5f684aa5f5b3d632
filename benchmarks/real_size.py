"""Graphs of real size on little memory: the time and the peak memory of imports, drawings, partitions and plans.

    python benchmarks/real_size.py --folder /data/scratch -o real_size.json       # 100 million edges
    python benchmarks/real_size.py --parts text,rmat --edges 1e7

Parts: text (a list of edges; and SciPy, networkx and PyG on 5 million of them), ogb (files in OGB's own formats, of two
sizes), rmat, partition, plan (of one of 8 ranks, with self loops), start (of a training, with kept plans and without),
read (the slices of 8 ranks). Commands may take 2 GiB of memory, imports of OGB's files 1 GiB. Each runs in a process of
its own, whose peak memory the system reports. The floor is the time of the bytes that have to be read and written, at
the speed at which the folder was written and read just before.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from harness import command, run
from harness.training import train

from mgg_hpc.data.store import open_graph
from mgg_hpc.errors import InputError
from mgg_hpc.plan import adjacency, halo, workload
from mgg_hpc.plan.ranges import edge_balanced
from mgg_hpc.tools.bench.results import Results, Row, output_files, words_of

LINES = 1 << 20  # of a list, written at a time
PEER_EDGES = 5_000_000
COPIED = 256 << 20  # bytes that measure the folder's speed
RANKS, ROUNDS = 8, 8


class Folder:
    """A folder in which files are written, and the bytes a second at which one was written and read."""

    def __init__(self, path: Path) -> None:
        data, file, self.path = np.ones(COPIED, np.uint8), path / "speed", path
        began = time.perf_counter()
        file.write_bytes(data.data)
        wrote = time.perf_counter()
        file.read_bytes()
        self.write, self.read = COPIED / (wrote - began), COPIED / (time.perf_counter() - wrote)
        file.unlink()

    def floor(self, read: int, written: int) -> Row:
        """Return the column of the seconds that reading and writing so many bytes take."""
        return {"floor_seconds": round(read / self.read + written / self.write, 3)}


def measured(*words: object) -> Row:
    """Run Python; return the columns of its seconds and the peak of its memory. Raises InputError if it fails."""
    program = [sys.executable, "-c", MEASURE, sys.executable, *map(str, words)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"python {' '.join(program[4:])} failed: {' '.join(done.stderr.split())}")
    seconds, peak = done.stdout.splitlines()[-1].split()
    return {"seconds": round(float(seconds), 3), "peak_mib": round(int(peak) / 2**20)}


def mgg(words: str, *more: object) -> Row:
    """Run `mgg`; return the same columns."""
    return measured("-m", "mgg_hpc", *words.split(), *more)


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
        theirs = measured("-c", program, source, folder.path / "peer.npz")
        note = f"{theirs['seconds'] / ours['seconds']:.1f} times ours"
        yield {"case": f"{few:,} edges, {name}"} | theirs | {"note": note}
    for path in (source, target, folder.path / "peer.npz"):
        path.unlink(missing_ok=True)


# The shortest programs that their documentation has: a list of text to a CSR in a file.
PEERS = {
    "SciPy": """
import sys, numpy as np, scipy.sparse as sp
pairs = np.loadtxt(sys.argv[1], dtype=np.int64)
nodes = pairs.max() + 1
sp.save_npz(sys.argv[2], sp.coo_matrix((np.ones(len(pairs), bool), (pairs[:, 1], pairs[:, 0])), (nodes, nodes)).tocsr(),
            compressed=False)
""",
    "networkx": """
import sys, networkx as nx, scipy.sparse as sp
graph = nx.read_edgelist(sys.argv[1], nodetype=int, create_using=nx.DiGraph, data=False)
sp.save_npz(sys.argv[2], sp.csr_matrix(nx.to_scipy_sparse_array(graph, weight=None)), compressed=False)
""",
    "PyG": """
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
            measured(WRITER, form, source, nodes, listed, features, classes)
            size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
            done = mgg("import --format ogb --memory 1G", source, "-o", target)
            case = f"{name}, {listed:,} edges, {nodes:,} nodes, {size / 1e9:.2f} GB"
            yield {"case": case} | done | folder.floor(size, target.stat().st_size)
            shutil.rmtree(source)
            target.unlink()


def generated(folder: Folder, edges: int, name: str = "rmat.h5", more: str = "") -> tuple[Path, Row]:
    """Make a recursive-matrix graph of about so many stored edges, once; return it, and what that took."""
    target, scale = folder.path / name, max(1, round(np.log2(edges / 25)))
    factor = max(1, round(edges / 2**scale / 1.92))
    words = f"generate rmat --scale {scale} --edge-factor {factor} --memory 2G {more}"
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
        began = time.perf_counter()
        indptr = opened.indptr()
        read = time.perf_counter()
        edge_balanced(indptr, RANKS)
        found = time.perf_counter()
    case = {"case": f"ranges of {RANKS} ranks", "seconds": round(found - read, 4)}
    yield case | {"note": f"indptr was read in {read - began:.2f} s"}
    done = mgg(f"partition -n {RANKS}", target)
    yield {"case": f"mgg partition -n {RANKS}"} | done | folder.floor(8 * len(indptr), 0)


def plan(folder: Folder, edges: int) -> Iterator[Row]:
    """Plan for one of 8 ranks; memory is in units of 4 bytes for each of the rank's edges."""
    program = [sys.executable, __file__, "--plan-of", generated(folder, edges)[0]]
    found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    unit = 4 * found["edges"]
    floor = folder.floor(2 * unit, 0)  # each edge is read and written once
    rows, segments = 50 * found["halo"] / unit, 32 * found["segments"] / unit
    split, halos = found["split_peak"], found["halo_peak"]
    yield {
        "case": f"rank 0 of {RANKS}, {found['edges']:,} edges, {found['rows']:,} rows",
        "seconds": round(found["split_s"], 3),
        "peak_mib": round(split / 2**20),
        **floor,
        "note": f"{split / unit:.2f} times 4 bytes an edge, with the given edges",
    }
    yield {
        "case": f"its halo of {found['halo']:,} rows in {ROUNDS} rounds, {found['segments']:,} segments",
        "seconds": round(found["halo_s"], 3),
        "peak_mib": round(halos / 2**20),
        **floor,
        "note": f"{halos / unit - rows - segments:.2f} times, beside 50 bytes a row of the halo ({rows:.2f} times) "
        f"and 32 a segment ({segments:.2f} times)",
    }


def plan_of_rank(file: Path) -> dict[str, Any]:
    """Plan for rank 0; return sizes, seconds, and peaks of memory in bytes above what was held before it was read."""
    with open_graph(file) as opened:
        bounds = edge_balanced(opened.indptr(), RANKS)
        nothing = np.zeros(1, np.int64)
        workload.split(
            0, np.zeros(2, np.int64), nothing, nothing[:0]
        )  # loads what is loaded at the first call
        peak_from_now()
        before = status("VmRSS")
        part = opened.slice(0, int(bounds[1]), dense=False)
    found: dict[str, Any] = {"edges": len(part.indices)}
    began = time.perf_counter()
    indptr, indices, _ = adjacency.with_self_loops(0, part.indptr, part.indices, None)
    del part
    edges = workload.split(0, bounds, indptr, indices)
    del indptr, indices
    found |= {"split_s": time.perf_counter() - began, "split_peak": status("VmHWM") - before}
    peak_from_now()
    began = time.perf_counter()
    made = halo.in_rounds(edges, ROUNDS, ordered=False)[0]
    found |= {"halo_s": time.perf_counter() - began, "halo_peak": status("VmHWM") - before}
    return found | {"rows": edges.destinations, "halo": len(edges.halo), "segments": len(made.segments)}


def status(name: str) -> int:
    """Return a number of bytes of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def peak_from_now() -> None:
    """Let VmHWM be the peak from here on."""
    Path("/proc/self/clear_refs").write_text("5")


def start(folder: Folder, edges: int) -> Iterator[Row]:
    """Start a training on one rank, up to the end of its first epoch, without kept plans and with them."""
    target, _ = generated(folder, edges, "labelled.h5", "--features 32 --classes 8")
    job = {"graph": {"file": str(target)}, "model": {"hidden": 16}, "train": {"epochs": 1}}
    for case, cache in (
        ("no plans kept", "never"),
        ("plans being kept", "always"),
        ("second time", "always"),
    ):
        summary = train(folder.path, job | {"plan": {"cache": cache}})
        seconds = {name: ms / 1e3 for name, ms in summary["start_ms"].items()}
        note = ", ".join(f"{name} {seconds[name]:.2f} s" for name in ("read", "plan", "first epoch"))
        kept = sum(each.stat().st_size for each in folder.path.glob("labelled.h5.plans/*"))
        note += f" (its step {summary['epoch_ms']['min'] / 1e3:.2f} s); {kept / 1e6:,.0f} MB of plans"
        peak = round(max(summary["peak_rss_bytes"]) / 2**20)
        yield {"case": case, "seconds": round(sum(seconds.values()), 3), "peak_mib": peak, "note": note}


def read(folder: Folder, edges: int) -> Iterator[Row]:
    """Count the bytes that each of 8 ranks reads of the file, beside the bytes of its slice."""
    target, worst = generated(folder, edges)[0], (0.0, 0, 0)
    with open_graph(target) as opened:
        bounds = edge_balanced(opened.indptr(), RANKS)
        began = time.perf_counter()
        for low, high in itertools.pairwise(bounds.tolist()):
            before = bytes_read()
            part = opened.slice(low, high)
            count = bytes_read() - before
            arrays = (part.indptr, part.indices, part.x, part.y, part.train, part.val, part.test)
            wanted = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
            worst = max(worst, (count / wanted - 1, count, wanted))
        seconds = time.perf_counter() - began
    note = f"{100 * worst[0]:.2f} percent more at most ({worst[1]:,} bytes for {worst[2]:,})"
    row = {"case": f"slices of {RANKS} ranks", "seconds": round(seconds, 3), "note": note}
    yield row | folder.floor(target.stat().st_size, 0)


def bytes_read() -> int:
    """Return the bytes that this process has read."""
    return int(Path("/proc/self/io").read_text().split()[1])


PARTS: dict[str, Callable[[Folder, int], Iterator[Row]]] = {
    each.__name__: each for each in (text, ogb, rmat, partition, plan, start, read)
}


@command(__doc__)
@click.option("--parts", default=",".join(PARTS), show_default=True)
@click.option(
    "--edges", type=click.FloatRange(100), default=1e8, show_default=True, help="Of the large graphs."
)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), help="[default: temporary]"
)
@click.option("--plan-of", type=click.Path(path_type=Path), hidden=True)
@output_files(pictures=False)
def main(
    parts: str, edges: float, folder: Path | None, plan_of: Path | None, files: tuple[Path, ...]
) -> None:
    if plan_of is not None:
        print(json.dumps(plan_of_rank(plan_of)))
        return
    chosen = words_of("parts", parts, PARTS)
    with tempfile.TemporaryDirectory(prefix="mgg-bench-", dir=folder) as made:
        place = Folder(Path(made))
        speeds = {"write_mb_per_s": round(place.write / 1e6), "read_mb_per_s": round(place.read / 1e6)}
        results = Results("graphs of real size", **speeds)
        for part in chosen:
            results.rows += [{"part": part, **row} for row in PARTS[part](place, int(edges))]
            results.write(files)  # what is measured stays, whatever ends the rest
    results.show()


if __name__ == "__main__":
    run(main)
