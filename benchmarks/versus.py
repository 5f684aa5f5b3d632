"""Compare this project's last commit with another one: times, measured in turns, or bits of results.

    python benchmarks/versus.py 2fe3fd9                                  # every part
    python benchmarks/versus.py 2fe3fd9 --bits
    python benchmarks/versus.py HEAD~1 --parts layers,epochs --turns 9
    python benchmarks/versus.py 2fe3fd9 --parts layers --isa avx2        # by kernels for AVX2

Both commits are compiled below build/versus, for all instruction sets. Each turn runs each part once by either one, in
processes of their own. A process repeats what it times, and its least time counts. Parts:

    layers      processor time of forward and backward of four layers, on 100 nodes and on a million edges
    gathers     copies by random numbers of 50,000 rows of `Rows`, 256 MiB of four ranks on one thread
    epochs      an epoch of `mgg train`
    loops       an epoch of a loop of one's own, on two ranks
    import      processor time of importing a text of --lines edges
    traversals  a search, shortest paths, components and PageRank
    start       processor time of `mgg --help`

``relative_time`` is the median over turns of this commit's time divided by the other one's; ``relative_min`` divides
the least times of all turns.

With --bits nothing is timed. Losses and weights of jobs (four models, each by three transfers on one rank and on two;
sampled; streamed), weights of a loop with a SAGA program, and the answers of four traversals are compared. The command
ends with 1 if any differ.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
import tomli_w
from harness import command, options, run, workers
from harness.processes import output
from harness.results import Results, output_files
from safetensors.numpy import load_file

from mgg_hpc.errors import InputError
from mgg_hpc.runtime.timing import interleaved, ratios

ROOT = Path(__file__).resolve().parents[1]
BUILDS = ROOT / "build" / "versus"
LAYERS = """
import json, sys, time
import torch
import mgg_hpc as mgg
found = {}
for name, repeats in (("small", 300), ("large", 7)):
    with mgg.open(f"{name}.h5") as graph:
        x = graph.x.clone().requires_grad_()
        for conv in ("GCNConv", "GINConv", "SAGEConv", "GATConv"):
            network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
            layer = mgg.nn.GINConv(network) if conv == "GINConv" else getattr(mgg.nn, conv)(64, 64)
            taken = []
            for _ in range(repeats):
                began = time.process_time()
                layer(x, graph).sum().backward()
                taken.append(time.process_time() - began)
            found[f"{conv}, {name} graph"] = 1e3 * min(taken)
print(json.dumps(found))
"""
GATHERS = """
import importlib, json, time
import numpy as np
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends import arguments, simulated
old = not hasattr(arguments, "TieredRows")  # ``gather`` took rows and their bounds
made = importlib.import_module("mgg_hpc.runtime.backends.host." + ("serial" if old else "kernels")).SerialBackend
options, rng, found = arguments.Options(arguments.Geometry(16, 1, 1)), np.random.default_rng(0), {}
for size in (64, 256, 1024, 4096):
    each, format = (1 << 26) // size, RowFormat(np.dtype("f4"), size // 4)
    world, bounds = simulated.World(4), np.arange(5) * each
    backends = [made(rank, world, options) for rank in range(4)]
    every = [backend.rows(np.diff(bounds), format, symmetric=True) for backend in backends]
    for rows in every:
        rows.local[:] = 1
    src = (rows, bounds) if old else (arguments.TieredRows.of_ranks(rows, bounds),)
    out, taken = np.empty((50_000, size // 4), np.float32), []
    for _ in range(40):
        ids = rng.integers(0, 4 * each, len(out))
        began = time.perf_counter()
        backends[-1].gather(*src, ids, out)
        taken.append(time.perf_counter() - began)
    found[f"gather, rows of {size} bytes"] = 1e3 * min(taken)
print(json.dumps(found))
"""
LOOP = """
import time
import torch
import mgg_hpc as mgg
mgg.manual_seed(1)
with mgg.open("middle.h5") as graph:
    convs = torch.nn.ModuleList([mgg.nn.GCNConv(64, 32), mgg.nn.GCNConv(32, graph.num_classes)])
    optimizer, taken = torch.optim.Adam(convs.parameters()), []
    for _ in range(40):
        began = time.perf_counter()
        loss = graph.loss(convs[1](convs[0](graph.x, graph).relu(), graph), torch.nn.functional.cross_entropy)
        optimizer.zero_grad()
        loss.backward()
        mgg.allreduce_gradients(convs)
        optimizer.step()
        taken.append(time.perf_counter() - began)
    if graph.rank == 0:
        print(1e3 * min(taken))
"""
PROGRAM = """
import hashlib
import torch
import mgg_hpc as mgg
class Gated(mgg.nn.saga.Layer):
    def __init__(self, width):
        super().__init__()
        self.src, self.dst = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
    def apply_edge(self, edge):
        return torch.sigmoid(self.src(edge.src) + self.dst(edge.dst)) * edge.src
    def apply_vertex(self, vertex, accum):
        return torch.relu(vertex + accum)
torch.manual_seed(1)
with mgg.open("middle.h5") as graph:
    layer, head = Gated(64), torch.nn.Linear(64, graph.num_classes)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()])
    for _ in range(3):
        optimizer.zero_grad()
        graph.loss(head(layer(graph.x, graph)), torch.nn.functional.cross_entropy).backward()
        optimizer.step()
    weights = b"".join(each.detach().numpy().tobytes() for each in (*layer.parameters(), *head.parameters()))
    print(hashlib.sha256(weights).hexdigest())
"""
MODELS: dict[str, Any] = {
    name: {"model": {"name": name, "hidden": 32}} for name in ("gcn", "gin", "sage", "gat")
}
MODELS |= {
    "sampled": {"model": {"name": "sage", "hidden": 32}, "train": {"mode": "sampled", "fanouts": [10, 10]}}
}
SAME = {"PYTHONDONTWRITEBYTECODE": "", "OMP_WAIT_POLICY": "passive"}  # variables of all processes
TRAVERSALS = ("bfs", "sssp", "cc", "pagerank")


def compiled(commit: str) -> Path:
    """Return the folder of a commit's files and modules, which are compiled unless their sources were before."""
    folder = BUILDS / commit
    if folder.exists():
        return folder
    files = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with workers.workspace() as made, tarfile.open(fileobj=io.BytesIO(files)) as archive:
        archive.extractall(made, filter="data")
        trees = [f"{commit}:{name}" for name in ("cuda", "CMakeLists.txt")]
        sources = "-".join(
            each[:12] for each in output(["git", "-C", ROOT, "rev-parse", *trees], "git").split()
        )
        build, bin = BUILDS / sources, Path(sys.executable).parent
        if not (build / "finished").exists():
            click.echo(f"compiling {commit[:7]}", err=True)
            shutil.rmtree(build, ignore_errors=True)
            places = [f"-DCMAKE_MAKE_PROGRAM={bin / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}"]
            output(
                [bin / "cmake", "-G", "Ninja", "-S", made, "-B", build, "-DMGG_CUDA=OFF", *places], "cmake"
            )
            output([bin / "cmake", "--build", build], "cmake --build")
            output([bin / "cmake", "--install", build, "--prefix", build / "installed"], "cmake --install")
            (build / "finished").touch()
        shutil.copytree(build / "installed" / "mgg_hpc", made / "mgg_hpc", dirs_exist_ok=True)
        shutil.rmtree(unfinished := folder.with_suffix(".unfinished"), ignore_errors=True)
        shutil.copytree(made, unfinished).rename(folder)
    return folder


def of(tree: Path, *words: object) -> tuple[str, float]:
    """Run Python with the package in ``tree``, in the current folder; return its output and processor time in ms."""
    environment = os.environ | SAME | {"PYTHONPATH": str(tree)}
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-P", *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"{tree.name[:7]}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return done.stdout, 1e3 * used


def printed(script: str, tree: Path) -> dict[str, float]:
    return json.loads(of(tree, "-c", script)[0])


def loops(tree: Path) -> dict[str, float]:
    Path("loop.py").write_text(LOOP)
    return {"epoch of a loop": float(of(tree, "-m", "mgg_hpc", "launch", "-n", 2, "loop.py")[0])}


def epochs(tree: Path) -> dict[str, float]:
    found = {}
    for name in MODELS:
        of(tree, "-m", "mgg_hpc", "train", f"{name}.toml", "--no-progress")
        summary = json.loads(Path("runs", name, "latest", "summary.json").read_text())
        found[f"epoch of {name}"] = summary["epoch_ms"]["min"]
    return found


def imports(tree: Path) -> dict[str, float]:
    words = ["import", "edges.txt", "-o", "imported.h5", "--force"]
    return {"import of text": of(tree, "-m", "mgg_hpc", *words)[1]}


def traversals(tree: Path) -> dict[str, float]:
    found = {}
    for name in TRAVERSALS:
        draws = ["--sources", 8] if name in ("bfs", "sssp") else []
        said = json.loads(
            of(tree, "-m", "mgg_hpc", "traverse", name, "large.h5", "--json", "--no-check", *draws)[0]
        )
        found[name] = 1e3 * min(each["seconds"] for each in said["runs"])
    return found


def start(tree: Path) -> dict[str, float]:
    return {"mgg --help": min(of(tree, "-m", "mgg_hpc", "--help")[1] for _ in range(5))}


def digests(tree: Path) -> dict[str, str]:
    """Return SHA-256 of what each run computes."""
    settings = {
        f"{name}, {transfer}, {ranks} ranks": (name, ranks, {"plan.transfer": transfer})
        for name in ("gcn", "gin", "sage", "gat")
        for transfer in ("direct", "get", "halo")
        for ranks in (1, 2)
    }
    settings["sampled"] = ("sampled", 2, {})
    settings["streamed"] = ("gcn", 2, {"plan.memory": "12M"})
    found = {}
    for run_name, (job, ranks, changed) in settings.items():
        changed |= {"train.epochs": 3, "run.folder": "bits"}
        sets = [f"--set={key}={json.dumps(value)}" for key, value in changed.items()]
        of(tree, "-m", "mgg_hpc", "launch", "-n", ranks, "train", f"{job}.toml", "--no-progress", *sets)
        digest = hashlib.sha256()
        with Path("bits", "latest", "metrics.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                digest.update(f"{row['loss']} {row['val_loss']}\n".encode())
        weights = load_file(Path("bits", "latest", "checkpoints", "model.safetensors"))
        for name in sorted(weights):
            digest.update(weights[name].tobytes())
        found[run_name] = digest.hexdigest()
        shutil.rmtree("bits")
    found["a SAGA program"] = of(tree, "-c", PROGRAM)[0].strip()
    for name in TRAVERSALS:
        file = "weighted.h5" if name == "sssp" else "large.h5"
        of(tree, "-m", "mgg_hpc", "traverse", name, file, "-o", "answers.h5", "--force")
        with h5py.File("answers.h5") as answers:
            digest = hashlib.sha256()
            for key in sorted(answers):
                digest.update(answers[key][()].tobytes())
        found[name] = digest.hexdigest()
    return found


PARTS: dict[str, Callable[[Path], dict[str, float]]] = {
    "layers": partial(printed, LAYERS), "gathers": partial(printed, GATHERS), "epochs": epochs, "loops": loops,
    "import": imports, "traversals": traversals, "start": start,
}  # fmt: skip


@command(__doc__)
@click.argument("commit")
@options.words("parts", PARTS, "What is timed.")
@click.option("--lines", type=click.IntRange(1), default=2_000_000, help="Edges of the imported text.")
@click.option("--isa", type=click.Choice(["avx2", "avx512"]), help="Instruction set. [default: the widest]")
@options.threads("Of each process. [default: 1]")
@options.turns(5)
@click.option("--bits", is_flag=True, help="Compare results instead of times.")
@output_files(pictures=False)
def main(
    commit: str,
    parts: list[str],
    lines: int,
    isa: str | None,
    threads: int | None,
    turns: int,
    bits: bool,
    files: tuple[Path, ...],
) -> None:
    names = [output(["git", "-C", ROOT, "rev-parse", "--verify", f"{each}^{{commit}}"], each).strip()
             for each in ("HEAD", commit)]  # fmt: skip
    here, other = map(compiled, names)
    SAME.update({"OMP_NUM_THREADS": str(threads or 1)} | ({"MGG_ISA": isa} if isa else {}))
    results = Results("versus", commit=names[0][:7], other=names[1][:7], isa=isa or "widest")
    with workers.workspace() as folder, contextlib.chdir(folder):
        inputs(other, lines)
        if bits:
            ours, theirs = digests(here), digests(other)
            differ = [name for name, digest in ours.items() if digest != theirs[name]]
            click.echo(f"{len(ours) - len(differ)} of {len(ours)} runs have the same bits")
            raise SystemExit(f"other bits: {'; '.join(differ)}" if differ else 0)
        for part in parts:
            taken = interleaved({tree: partial(PARTS[part], tree) for tree in (here, other)}, turns)
            for variant in taken[here][0]:
                ms, first = ([each[variant] for each in taken[tree]] for tree in (here, other))
                spread = ratios(ms, first)
                results.add(variant, ms, first, relative_min=round(min(ms) / min(first), 4), other_ms=min(first),
                            least=spread["min"], most=spread["max"])  # fmt: skip
    results.write(files)
    results.show("variant", "min_ms", "other_ms", "relative_min", "relative_time", "least", "most")


def inputs(tree: Path, lines: int) -> None:
    """Write the graphs and jobs into the present folder; the other commit draws them, since both read its files."""
    rng = np.random.default_rng(1)
    np.savetxt("edges.txt", rng.integers(lines // 8, size=(lines, 2)), fmt="%d")
    np.savetxt("weighted.txt", rng.integers(1, 5000, (40_000, 3)), fmt="%d")
    of(tree, "-m", "mgg_hpc", "import", "weighted.txt", "-o", "weighted.h5")
    for name, words in {
        "small": "sbm --nodes 100 --classes 4",
        "middle": "sbm --nodes 60000 --classes 8",
        "large": "rmat --scale 16 --edge-factor 8",
    }.items():
        of(tree, "-m", "mgg_hpc", "generate", *words.split(), "--features", 64, "-o", f"{name}.h5")
    for name, sections in MODELS.items():
        job = {"graph": {"file": "middle.h5"}} | sections
        job["train"] = {"epochs": 12} | sections.get("train", {})
        Path(f"{name}.toml").write_text(tomli_w.dumps(job))


if __name__ == "__main__":
    run(main)
