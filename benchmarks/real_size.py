"""Graphs of real size on little memory: the time and the peak memory of imports, drawings, parts and plans.

    python benchmarks/real_size.py --folder /data/scratch                    # all parts, 100 million edges
    python benchmarks/real_size.py --parts text,rmat --edges 1e7 --json real_size.json

Parts: text (a list of edges, and how long SciPy, networkx and PyG take on 5 million of them), ogb (files in OGB's own
formats, of two sizes), rmat, partition, plan, start, read, metis. Each command runs in a process of its own, whose peak
memory the system tells. The floor beside a time is that of the bytes that have to be read and written, at the speed at
which this folder was written and read just before.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np
from partition import counted
from rich.console import Console
from rich.table import Table

from mgg_hpc.data.store import open_graph
from mgg_hpc.plan.ranges import edge_balanced
from mgg_hpc.runtime import cores

MGG = [sys.executable, "-m", "mgg_hpc"]
LINES = 1 << 20  # of a list, written at a time
PEER_EDGES = 5_000_000
COPIED = 256 << 20  # bytes that measure the folder's speed


@dataclass
class Row:
    """A figure: what was measured, seconds, peak bytes of memory, the floor in seconds, and anything to note."""

    what: str
    seconds: float | None
    peak_bytes: int | None = None
    floor_s: float | None = None
    note: str = ""


@dataclass
class Folder:
    """Where files are written, and how fast: bytes a second."""

    path: Path
    write: float = 0.0
    read: float = 0.0

    def measure(self) -> None:
        """Write and read a file once."""
        data, file = np.ones(COPIED, np.uint8), self.path / "speed"
        began = time.perf_counter()
        file.write_bytes(data.data)
        wrote = time.perf_counter()
        file.read_bytes()
        self.write, self.read = COPIED / (wrote - began), COPIED / (time.perf_counter() - wrote)
        file.unlink()

    def floor(self, read: int, written: int) -> float:
        """Return the seconds that so many bytes take."""
        return read / self.read + written / self.write


def run(command: Sequence[object], **environment: str) -> tuple[float, int]:
    """Run a command; return its seconds and the peak bytes of its largest process."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile("w+") as told:
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *words],
            stdout=told,
            stderr=told,
            env=os.environ | environment,
            check=False,
        )
        told.seek(0)
        lines = told.read().splitlines()
    if done.returncode:
        raise SystemExit("\n".join([f"{' '.join(words)} failed:", *lines]))
    seconds, peak = lines[-1].split()
    return float(seconds), int(peak)


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


def write_list(path: Path, edges: int, nodes: int) -> None:
    """Write a list of random edges, a line each."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for low in range(0, edges, LINES):
            pairs = rng.integers(nodes, size=(min(LINES, edges - low), 2))
            file.write(("%d %d\n" * len(pairs)) % tuple(pairs.reshape(-1).tolist()))


def text(folder: Folder, edges: int) -> list[Row]:
    """A text list to a graph file; and routes of other libraries on 5 million edges."""
    source, target = folder.path / "edges.txt", folder.path / "edges.h5"
    write_list(source, edges, max(2, edges // 10))
    size = source.stat().st_size
    seconds, peak = run([*MGG, "import", source, "-o", target, "--memory", "2G", "--force"])
    floor = folder.floor(size, target.stat().st_size)
    rows = [Row(f"text, {edges:,} edges, {size / 1e9:.2f} GB, --memory 2G", seconds, peak, floor)]
    target.unlink()
    few = min(edges, PEER_EDGES)
    write_list(source, few, max(2, few // 10))
    ours, peak = run([*MGG, "import", source, "-o", target, "--memory", "2G", "--force"])
    rows.append(Row(f"text, {few:,} edges", ours, peak))
    for name, program in PEERS.items():
        theirs, peak = run([sys.executable, "-c", program, source, folder.path / "peer.npz"])
        rows.append(Row(f"  the same by {name}", theirs, peak, note=f"{theirs / ours:.1f} times ours"))
    for path in (source, target, folder.path / "peer.npz"):
        path.unlink(missing_ok=True)
    return rows


# The shortest ways of their documentation: a list of text to a CSR in a file.
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


def ogb(folder: Folder, edges: int) -> list[Row]:
    """OGB's two forms of files, each at a size and at one four times larger."""
    rows = []
    for shape in OGB:
        for listed in (edges // shape.fewer // 4, edges // shape.fewer):
            source, target = folder.path / "dataset", folder.path / "ogb.h5"
            nodes = max(100, round(listed / shape.edges_a_node))
            run([sys.executable, WRITER, shape.form, source, nodes, listed, shape.features, shape.classes])
            size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
            seconds, peak = run([*MGG, "import", source, "-o", target, "--format", "ogb", "--memory", "1G"])
            what = f"{shape.name}, {listed:,} edges, {nodes:,} nodes, {size / 1e9:.2f} GB, --memory 1G"
            rows.append(Row(what, seconds, peak, folder.floor(size, target.stat().st_size)))
            shutil.rmtree(source)
            target.unlink()
    return rows


@dataclass(frozen=True)
class Shape:
    """A dataset of OGB. form: of its files; fewer: how many times fewer edges than asked for are drawn."""

    name: str
    form: str
    edges_a_node: float
    features: int
    classes: int
    fewer: int


OGB = (
    Shape("ogbn-arxiv as text", "text", 1_166_243 / 169_343, 128, 40, 40),
    Shape("ogbn-papers100M as binary", "binary", 1_615_685_872 / 111_059_956, 128, 172, 2),
)
WRITER = Path(__file__).parents[1] / "tests/data/readers_arrays/ogb_files.py"


def drawn(folder: Folder, edges: int) -> tuple[Path, float, int]:
    """Make a recursive-matrix graph of about so many stored edges, once; return it, and what it took."""
    target = folder.path / "rmat.h5"
    scale = max(1, round(np.log2(edges / 25)))
    factor = max(1, round(edges / 2**scale / 1.92))
    command = [
        *MGG,
        "generate",
        "rmat",
        "--scale",
        scale,
        "--edge-factor",
        factor,
        "-o",
        target,
        "--memory",
        "2G",
    ]
    return (target, 0.0, 0) if target.exists() else (target, *run(command))


def rmat(folder: Folder, edges: int) -> list[Row]:
    """A recursive-matrix graph to a file."""
    target, seconds, peak = drawn(folder, edges)
    with open_graph(target) as opened:
        what = f"rmat, {opened.nodes:,} nodes, {opened.edges:,} stored edges, --memory 2G"
    return [Row(what, seconds, peak, folder.floor(0, target.stat().st_size))]


def partition(folder: Folder, edges: int) -> list[Row]:
    """Row ranges of 8 ranks, found from indptr alone; and the command, which adds them to the file."""
    target = drawn(folder, edges)[0]
    with open_graph(target) as opened:
        began = time.perf_counter()
        indptr = opened.indptr()
        read = time.perf_counter()
        edge_balanced(indptr, 8)
        found = time.perf_counter()
    rows = [Row("ranges of 8 ranks", found - read, note=f"reading indptr took {read - began:.2f} s")]
    seconds, peak = run([*MGG, "partition", target, "-n", 8])
    rows.append(Row("  mgg partition -n 8", seconds, peak, folder.floor(8 * len(indptr), 0)))
    return rows


def metis(folder: Folder, edges: int) -> list[Row]:
    """METIS beside the default on cnr_2000, 4 ranks: distinct remote rows. Needs the graphs that MGG_DATA names."""
    source = Path(os.environ.get("MGG_DATA", "../shared/data")) / "cnr_2000" / "cnr_2000.npz"
    if not source.exists():
        return [Row("metis on cnr_2000", None, note=f"{source} is not there; set MGG_DATA")]
    target = folder.path / "cnr.h5"
    run([*MGG, "import", source, "-o", target])
    rows = []
    with open_graph(target) as opened:
        for method in ("edges", "metis", "ldg"):
            found = counted(opened, method, 4)
            note = f"{found['halo rows']:,} rows of the halo, {found['cut edges']:,} edges cut"
            rows.append(Row(f"cnr_2000, 4 ranks, {method}", found["seconds"], note=note))
    return rows


def plan(folder: Folder, edges: int) -> list[Row]:
    """The plan of one of 8 ranks, and its memory in units of 4 bytes for each of the rank's edges."""
    target = drawn(folder, edges)[0]
    program = [sys.executable, str(Path(__file__).with_name("plan_of_rank.py")), str(target)]
    found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    unit = 4 * found["edges"]
    floor = 2 * unit / folder.read  # each edge is read and written once
    halo, segments = 50 * found["halo"], 32 * found["segments"]
    return [
        Row(
            f"plan of rank 0 of 8, {found['edges']:,} edges, {found['rows']:,} rows",
            found["split_s"],
            found["split_peak"],
            floor,
            f"{found['split_peak'] / unit:.2f} times 4 bytes an edge, with the given edges",
        ),
        Row(
            f"  its halo of {found['halo']:,} rows in 8 rounds, {found['segments']:,} segments",
            found["halo_s"],
            found["halo_peak"],
            floor,
            f"{(found['halo_peak'] - halo - segments) / unit:.2f} times, beside 50 bytes a row of the halo "
            f"({halo / unit:.2f} times) and 32 a segment ({segments / unit:.2f} times)",
        ),
    ]


def start(folder: Folder, edges: int) -> list[Row]:
    """The start of training on one rank, reading and the first epoch included: without kept plans, and with them."""
    target, job = folder.path / "labelled.h5", folder.path / "job.toml"
    scale = max(1, round(np.log2(edges / 25)))
    factor = max(1, round(edges / 2**scale / 1.92))
    drawing = ["--scale", scale, "--edge-factor", factor, "--features", 32, "--classes", 8, "--memory", "2G"]
    run([*MGG, "generate", "rmat", *drawing, "-o", target])
    job.write_text(
        f'graph.file = "{target}"\nmodel.hidden = 16\ntrain.epochs = 1\nrun.folder = "{folder.path}/runs"\n'
    )
    rows = []
    for what, cache in (
        ("no plans kept", "never"),
        ("plans being kept", "always"),
        ("second time", "always"),
    ):
        _, peak = run([*MGG, "train", job, "--no-progress", "--set", f"plan.cache={cache}"])
        told = json.loads((folder.path / "runs" / "latest" / "summary.json").read_text())
        parts = told["start_ms"]
        note = f"read {parts['read'] / 1e3:.2f} s, plan {parts['plan'] / 1e3:.2f} s, first epoch "
        note += f"{parts['first epoch'] / 1e3:.2f} s (its step {told['epoch_ms']['min'] / 1e3:.2f} s)"
        rows.append(Row(f"start on {edges:,} edges, {what}", sum(parts.values()) / 1e3, peak, None, note))
    kept = sum(each.stat().st_size for each in folder.path.glob("labelled.h5.plans/*"))
    rows[-1].note += f"; {kept / 1e6:,.0f} MB of plans"
    return rows


def read(folder: Folder, edges: int) -> list[Row]:
    """The bytes that each of 8 ranks reads of the file, against those of its slice."""
    target, rows = drawn(folder, edges)[0], []
    with open_graph(target) as opened:
        bounds = edge_balanced(opened.indptr(), 8)
        worst = (0.0, 0, 0)
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
    rows.append(Row("slices of 8 ranks", seconds, None, folder.floor(target.stat().st_size, 0), note))
    return rows


def bytes_read() -> int:
    """Return the bytes that this process has read."""
    return int(Path("/proc/self/io").read_text().split()[1])


PARTS: dict[str, Callable[[Folder, int], list[Row]]] = {
    "text": text,
    "ogb": ogb,
    "rmat": rmat,
    "partition": partition,
    "plan": plan,
    "start": start,
    "read": read,
    "metis": metis,
}


@click.command(help=__doc__)
@click.option("--parts", default=",".join(PARTS), help="Which parts, separated by commas.", show_default=True)
@click.option("--edges", type=float, default=1e8, help="Edges of the large graphs.", show_default=True)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), help="[default: temporary]"
)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the figures here.")
def main(parts: str, edges: float, folder: Path | None, output: Path | None) -> None:
    chosen = parts.split(",")
    for part in chosen:
        if part not in PARTS:
            raise click.BadParameter(
                f"there is no part {part!r}; expected {', '.join(PARTS)}", param_hint="--parts"
            )
    found: list[Row] = []
    with tempfile.TemporaryDirectory(dir=folder) as made:
        place = Folder(Path(made))
        place.measure()
        for part in chosen:
            found += PARTS[part](place, int(edges))
    table = Table(title=f"graphs of real size, {cores.available()} cores", title_style="bold")
    for heading in ("what", "seconds", "peak MiB", "floor s", ""):
        table.add_column(heading, justify="left" if heading in ("what", "") else "right")
    for row in found:
        peak = "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f}"
        times = ["" if each is None else f"{each:.2f}" for each in (row.seconds, row.floor_s)]
        table.add_row(row.what, times[0], peak, times[1], row.note)
    Console(width=140).print(table)
    if output is not None:
        facts = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "write_mb_s": place.write / 1e6}
        output.write_text(json.dumps(facts | {"rows": [asdict(row) for row in found]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
