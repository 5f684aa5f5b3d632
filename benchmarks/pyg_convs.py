"""Compare every convolution of PyG after `mgg.convert`, on several ranks, with PyG's own in one process.

    python benchmarks/pyg_convs.py                       # a table for docs/pyg.md
    python benchmarks/pyg_convs.py --ranks 1,2,4 --only GATConv,ChebConv

The graph is directed, and has self loops, repeated edges and nodes without edges. Each cell of the table says "equal"
or "DIFFERS" with the largest difference, relative to the largest value, of outputs and of the gradients of input rows,
edge data and parameters; "equal" is a difference below 1e-5. If the convolution is refused, the cell has the reason.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import torch_geometric.nn as pyg
from harness import command, run
from harness.processes import output
from harness.results import words_of
from torch import Tensor, nn
from torch_geometric.data import Data

import mgg_hpc as mgg
from mgg_hpc.runtime import mpi
from mgg_hpc.sizes import numbers_of

F, OUT, NODES, EDGES, TYPES = 8, 6, 61, 420, 3
NEAR = 1e-5  # of the largest value


def mlp(a: int, b: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(a, 7), nn.ReLU(), nn.Linear(7, b))


@dataclass(frozen=True)
class Conv:
    """Constructor of a convolution, and the names of the tensors that its forward takes, in order."""

    make: Callable[[], nn.Module]
    takes: str = "x index"


DEGREES = torch.tensor([4, 9, 12, 15, 9, 6, 4, 2])
METADATA = (["a"], [("a", "to", "a")])
CONVS: dict[str, Conv] = {
    "SimpleConv": Conv(lambda: pyg.SimpleConv("mean", combine_root="sum"), "x index weight"),
    "GCNConv": Conv(lambda: pyg.GCNConv(F, OUT), "x index weight"),
    "ChebConv": Conv(lambda: pyg.ChebConv(F, OUT, K=3), "x index weight"),
    "SAGEConv": Conv(lambda: pyg.SAGEConv(F, OUT)),
    "CuGraphSAGEConv": Conv(lambda: pyg.CuGraphSAGEConv(F, OUT)),
    "GraphConv": Conv(lambda: pyg.GraphConv(F, OUT), "x index weight"),
    "GravNetConv": Conv(lambda: pyg.GravNetConv(F, OUT, 3, 4, 5), "x"),
    "GatedGraphConv": Conv(lambda: pyg.GatedGraphConv(F + 1, 2), "x index weight"),
    "ResGatedGraphConv": Conv(lambda: pyg.ResGatedGraphConv(F, OUT, edge_dim=3), "x index attr"),
    "GATConv": Conv(lambda: pyg.GATConv(F, OUT, heads=2, edge_dim=3), "x index attr"),
    "CuGraphGATConv": Conv(lambda: pyg.CuGraphGATConv(F, OUT)),
    "FusedGATConv": Conv(lambda: pyg.FusedGATConv(F, OUT, add_self_loops=False)),
    "GATv2Conv": Conv(lambda: pyg.GATv2Conv(F, OUT, heads=2, edge_dim=3), "x index attr"),
    "TransformerConv": Conv(
        lambda: pyg.TransformerConv(F, OUT, heads=2, edge_dim=3, beta=True), "x index attr"
    ),
    "AGNNConv": Conv(pyg.AGNNConv),
    "TAGConv": Conv(lambda: pyg.TAGConv(F, OUT), "x index weight"),
    "GINConv": Conv(lambda: pyg.GINConv(mlp(F, OUT), train_eps=True)),
    "GINEConv": Conv(lambda: pyg.GINEConv(mlp(F, OUT), edge_dim=3), "x index attr"),
    "ARMAConv": Conv(lambda: pyg.ARMAConv(F, OUT, num_stacks=2, num_layers=2), "x index weight"),
    "SGConv": Conv(lambda: pyg.SGConv(F, OUT, K=2), "x index weight"),
    "SSGConv": Conv(lambda: pyg.SSGConv(F, OUT, alpha=0.1, K=2), "x index weight"),
    "APPNP": Conv(lambda: pyg.APPNP(3, 0.1), "x index weight"),
    "MFConv": Conv(lambda: pyg.MFConv(F, OUT, max_degree=5)),
    "RGCNConv": Conv(lambda: pyg.RGCNConv(F, OUT, TYPES, num_bases=2), "x index type"),
    "FastRGCNConv": Conv(lambda: pyg.FastRGCNConv(F, OUT, TYPES), "x index type"),
    "CuGraphRGCNConv": Conv(lambda: pyg.CuGraphRGCNConv(F, OUT, TYPES), "x index type"),
    "RGATConv": Conv(lambda: pyg.RGATConv(F, OUT, TYPES, edge_dim=3), "x index type attr"),
    "SignedConv": Conv(lambda: pyg.SignedConv(F, OUT, first_aggr=True), "x positive negative"),
    "DNAConv": Conv(lambda: pyg.DNAConv(F, heads=2, groups=2), "layers index weight"),
    "PointNetConv": Conv(lambda: pyg.PointNetConv(mlp(F + 3, OUT)), "x pos index"),
    "GMMConv": Conv(lambda: pyg.GMMConv(F, OUT, dim=3, kernel_size=2), "x index attr"),
    "SplineConv": Conv(lambda: pyg.SplineConv(F, OUT, dim=3, kernel_size=2), "x index attr"),
    "NNConv": Conv(lambda: pyg.NNConv(F, OUT, mlp(3, F * OUT)), "x index attr"),
    "CGConv": Conv(lambda: pyg.CGConv(F, dim=3, batch_norm=True), "x index attr"),
    "EdgeConv": Conv(lambda: pyg.EdgeConv(mlp(2 * F, OUT))),
    "DynamicEdgeConv": Conv(lambda: pyg.DynamicEdgeConv(mlp(2 * F, OUT), k=4), "x"),
    "XConv": Conv(lambda: pyg.XConv(F, OUT, dim=3, kernel_size=4), "x pos"),
    "PPFConv": Conv(lambda: pyg.PPFConv(mlp(F + 4, OUT)), "x pos normal index"),
    "FeaStConv": Conv(lambda: pyg.FeaStConv(F, OUT, heads=2)),
    "PointTransformerConv": Conv(lambda: pyg.PointTransformerConv(F, OUT), "x pos index"),
    "HypergraphConv": Conv(lambda: pyg.HypergraphConv(F, OUT), "x hyper"),
    "LEConv": Conv(lambda: pyg.LEConv(F, OUT), "x index weight"),
    "PNAConv": Conv(
        lambda: pyg.PNAConv(F, OUT, ["mean", "max", "std"], ["identity", "attenuation"], DEGREES, edge_dim=3),
        "x index attr",
    ),
    "ClusterGCNConv": Conv(lambda: pyg.ClusterGCNConv(F, OUT, diag_lambda=0.3)),
    "GENConv": Conv(lambda: pyg.GENConv(F, OUT, edge_dim=3, learn_t=True), "x index attr"),
    "GCN2Conv": Conv(lambda: pyg.GCN2Conv(F, alpha=0.2, theta=0.5, layer=2), "x x0 index weight"),
    "PANConv": Conv(lambda: pyg.PANConv(F, OUT, filter_size=2)),
    "WLConv": Conv(pyg.WLConv, "colours index"),
    "WLConvContinuous": Conv(pyg.WLConvContinuous, "x index weight"),
    "FiLMConv": Conv(lambda: pyg.FiLMConv(F, OUT, TYPES), "x index type"),
    "SuperGATConv": Conv(lambda: pyg.SuperGATConv(F, OUT, heads=2, attention_type="MX").eval()),
    "FAConv": Conv(lambda: pyg.FAConv(F), "x x0 index"),
    "EGConv": Conv(lambda: pyg.EGConv(F, OUT, ["sum", "max", "symnorm", "std"], num_heads=2)),
    "PDNConv": Conv(lambda: pyg.PDNConv(F, OUT, edge_dim=3, hidden_channels=5), "x index attr"),
    "GeneralConv": Conv(lambda: pyg.GeneralConv(F, OUT, 3, attention=True, heads=2), "x index attr"),
    "HGTConv": Conv(lambda: pyg.HGTConv(F, OUT, METADATA), "x_dict index_dict"),
    "HEATConv": Conv(lambda: pyg.HEATConv(F, OUT, TYPES, TYPES, 2, 3, 2), "x index kind type attr"),
    "HeteroConv": Conv(lambda: pyg.HeteroConv({METADATA[1][0]: pyg.SAGEConv(F, OUT)}), "x_dict index_dict"),
    "HANConv": Conv(lambda: pyg.HANConv(F, OUT, METADATA), "x_dict index_dict"),
    "LGConv": Conv(pyg.LGConv, "x index weight"),
    "PointGNNConv": Conv(lambda: pyg.PointGNNConv(mlp(F, 3), mlp(F + 3, OUT), mlp(OUT, F)), "x pos index"),
    "GPSConv": Conv(lambda: pyg.GPSConv(F, pyg.GINConv(mlp(F, F)), heads=2)),
    "AntiSymmetricConv": Conv(lambda: pyg.AntiSymmetricConv(F, num_iters=2)),
    "DirGNNConv": Conv(lambda: pyg.DirGNNConv(pyg.SAGEConv(F, OUT))),
    "MixHopConv": Conv(lambda: pyg.MixHopConv(F, OUT), "x index weight"),
    "MeshCNNConv": Conv(lambda: pyg.MeshCNNConv(F, OUT), "x index"),
}


def documented() -> dict[str, list[str]]:
    """Return the names of convolutions in each row of the table in docs/pyg.md, by the row's first cell."""
    page = (Path(__file__).parents[1] / "docs" / "pyg.md").read_text()
    table = page.partition("## Convolutions")[2].partition("## ")[0]
    rows = re.findall(r"^\| (\S.*?) \| (.*) \|$", table, re.MULTILINE)
    return {kind: [each for each in re.findall(r"\w+", names) if each in CONVS] for kind, names in rows}


def drawn(rng: np.random.Generator) -> dict[str, Tensor]:
    """Return random tensors of a graph's nodes and edges, floats in float64, by the names used in `Conv.takes`."""
    source, target = rng.integers(0, NODES, EDGES), rng.integers(0, NODES - 4, EDGES)
    source[:20] = target[:20]  # self loops
    source[20:50], target[20:50] = source[50:80], target[50:80]
    source[10:14], target[10:14] = source[0], target[0]
    rows = {name: rng.standard_normal((NODES, F)) for name in ("x", "x0")}
    rows |= {"layers": rng.standard_normal((NODES, 3, F)), "pos": rng.random((NODES, 3))}
    rows |= {"normal": rng.standard_normal((NODES, 3)), "kind": rng.integers(0, TYPES, NODES)}
    rows |= {"colours": rng.integers(0, 4, NODES)}
    edges = {"weight": rng.uniform(0.5, 2, EDGES), "attr": rng.random((EDGES, 3))}
    edges |= {"type": rng.integers(0, TYPES, EDGES)}
    found = {name: torch.from_numpy(each) for name, each in (rows | edges).items()}
    return found | {"index": torch.from_numpy(np.stack([source, target]))}


OF_EDGES = ("weight", "attr", "type")


def opened(every: dict[str, Tensor], comm: Any = None, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    """Open the graph of tensors from `drawn`; return it and this rank's part of each tensor. Collective."""
    places = torch.arange(every["index"].shape[1], dtype=torch.float32)[:, None]
    data = Data(x=every["x"], edge_index=every["index"], edge_attr=places)
    graph = mgg.from_pyg(data, comm=comm, **options)
    place = graph.edge_data("attr").long()[:, 0]
    mine = {
        name: each[place if name in OF_EDGES else graph.ids]
        for name, each in every.items()
        if name != "index"
    }
    return graph, mine | {"index": graph.edge_index()}


def arguments(tensors: dict[str, Tensor], takes: str, dtype: torch.dtype) -> list[Any]:
    """Return the arguments of a convolution; floating-point tensors are copied to ``dtype`` and require gradients."""
    of, half = tensors["index"], tensors["type"] == 0
    tensors = tensors | {"positive": of[:, half], "negative": of[:, ~half], "hyper": of % 7}
    found: list[Any] = []
    for name in takes.split():
        if name.endswith("_dict"):
            key: Any = "a" if name == "x_dict" else METADATA[1][0]
            each = tensors[name.removesuffix("_dict")]
            found.append({key: each.to(dtype) if each.is_floating_point() else each})
            continue
        each = tensors[name]
        found.append(each.to(dtype, copy=True).requires_grad_() if each.is_floating_point() else each)
    return found


def value_of(out: Any) -> Tensor:
    """Return the first tensor of what a convolution returns."""
    while not isinstance(out, Tensor):
        out = next(iter(out.values() if isinstance(out, dict) else out))
    return out


def differs(mine: Tensor, wanted: Tensor, largest: float) -> float:
    """Return the largest absolute difference divided by ``largest``; infinity for different shapes."""
    if mine.shape != wanted.shape:
        return float("inf")
    return float((mine - wanted).abs().max()) / largest if wanted.numel() else 0


def compared(
    model: nn.Module,
    takes: str,
    every: dict[str, Tensor],
    graph: Any,
    mine: dict[str, Tensor],
    dtype: torch.dtype,
    alone: nn.Module | None = None,
) -> float:
    """Compare outputs and gradients of a converted model with those that the model gives in one process. Collective.

    takes: as in `Conv`. every, mine: tensors of the whole graph and of this rank. dtype: of the converted model. alone:
    a second instance of the model, for models that cannot be copied. Returns the largest relative difference.
    """
    inputs = arguments(every, takes, torch.float64)
    alone = (alone or copy.deepcopy(model)).double()
    wanted = value_of(alone(*inputs))
    weights = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view(wanted.shape).sin() + 0.5
    if wanted.requires_grad:
        wanted.backward(weights)
    gradients = {name: each.grad for name, each in alone.named_parameters()}
    ours = arguments(mine, takes, dtype)
    with warnings.catch_warnings():  # of some no rows can be compared at the first call
        warnings.filterwarnings("ignore", "mgg.convert")
        out = value_of(mgg.convert(model.to(dtype), graph)(*ours))
    if wanted.requires_grad:
        out.backward(weights[graph.ids].to(dtype))
    mgg.allreduce_gradients(model, graph)
    found = [differs(out.detach(), wanted.detach()[graph.ids], float(wanted.detach().abs().max()))]
    places = graph.edge_data("attr").long()[:, 0]
    for name, here, there in zip(takes.split(), ours, inputs, strict=True):
        if isinstance(there, Tensor) and there.grad is not None:
            rows = there.grad[places if name in OF_EDGES else graph.ids]
            found.append(differs(here.grad, rows, float(there.grad.abs().max())))
    # A parameter's own gradient may vanish.
    largest = max((float(each.abs().max()) for each in gradients.values() if each is not None), default=1)
    for name, each in model.named_parameters():
        if gradients[name] is not None:
            found.append(differs(each.grad, gradients[name], largest))
    return max(graph.comm.allgather(max(found)))


def table(names: Iterable[str], comm: Any, rng: np.random.Generator, dtype: str) -> dict[str, Any]:
    """Return for each convolution its largest difference, or the reason why it is refused. Collective."""
    every = drawn(rng)
    graph, mine = opened(every, comm, dtype=dtype)
    found: dict[str, Any] = {}
    for name in names:
        torch.manual_seed(1)
        try:
            model = CONVS[name].make()
            model.load_state_dict(comm.bcast(model.state_dict()))  # PyG leaves some parameters as memory is
        except (ImportError, AttributeError, ValueError, RuntimeError) as error:
            found[name] = f"PyG: {str(error).splitlines()[0]}"
            continue
        try:
            found[name] = compared(model, CONVS[name].takes, every, graph, mine, getattr(torch, dtype))
        except mgg.InputError as error:
            found[name] = str(error)
        except ImportError as error:
            found[name] = f"PyG: {str(error).splitlines()[0]}"
    graph.close()
    return found


@command(__doc__)
@click.option("--ranks", default="1,2,4", help="Numbers of ranks.")
@click.option("--only", default=",".join(CONVS), help="Convolutions.")
@click.option("--seed", type=int, default=1)
@click.option(
    "--dtype", type=click.Choice(["float32", "float64"]), default="float64", help="PyG's own is float64."
)
@click.option("--inside", is_flag=True, hidden=True)
def main(ranks: str, only: str, seed: int, dtype: str, inside: bool) -> None:
    names = words_of("--only", only, CONVS)
    if inside:
        comm = mpi.world()
        found = table(names, comm, np.random.default_rng(seed), dtype)
        if comm.rank == 0:
            print(json.dumps(found))
        return
    results: dict[int, dict[str, Any]] = {}
    for count in numbers_of("--ranks", ranks):
        launch = [sys.executable, "-m", "mgg_hpc", "launch", "-n", count, __file__, "--inside"]
        said = output([*launch, "--only", only, "--seed", seed, "--dtype", dtype], f"{count} ranks")
        results[count] = json.loads(said.splitlines()[-1])
    print("| convolution | " + " | ".join(f"{count} ranks" for count in results) + " |")
    print("|---" * (len(results) + 1) + "|")
    equal = 0
    for name in names:
        cells = [results[count][name] for count in results]
        equal += all(not isinstance(each, str) and each < NEAR for each in cells)
        shown = [
            each if isinstance(each, str) else f"{'equal' if each < NEAR else 'DIFFERS'}, {each:.0e}"
            for each in cells
        ]
        print(f"| {name} | " + " | ".join(shown) + " |")
    print(f"\n{equal} of {len(names)} equal")


if __name__ == "__main__":
    run(main)
