"""The sums on a GPU that are compared: this package, the gather floor, cuSPARSE three ways, and PyG two ways."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ....runtime.backends.arguments import Geometry
from ..harness.gpu import Call, Problem, gather_floor, matrix
from . import cusparse, gpu_alone
from .summary import OURS

FLOOR_THREADS = (128, 256, 512)  # of a block; the best counts


@dataclass
class Baseline:
    """A named way of computing the sums: calls[i] sums set i; result() is the last set's output, a float32 tensor
    [n, dim] on the device.

    kept: arrays that the calls read by address. about: of other libraries, the algorithm, what is done before the
    clock starts, and what of it calls keep.
    """

    name: str
    calls: Sequence[Call]
    result: Callable[[], Any]
    kept: tuple[Any, ...] = ()
    about: str = ""


def ours(problem: Problem, transfer: str = "direct", geometry: Geometry | None = None) -> Baseline:
    """Return this package's kernel of a transfer; all rows are local. geometry: MGG's parameters, or the default."""
    device = problem.device
    geometry = geometry or gpu_alone.geometry_of(device, transfer, problem.format)
    plan = gpu_alone.plan_of(problem.edges, transfer)
    edge = None if problem.weight is None else device.arrays.uploaded(problem.weight[plan.edge])
    op = "copy" if edge is None else "mul"
    backend = gpu_alone.backend_of(device, transfer, geometry)
    backend.prepare(plan, problem.format)
    calls = [
        partial(backend.aggregate, plan, op, "sum", rows, out, edge=edge)
        for rows, out in zip(problem.sources, problem.outputs, strict=True)
    ]
    return Baseline(OURS[transfer], calls, lambda: numbers(problem.outputs[-1]))


def floors(problem: Problem) -> list[Baseline]:
    """Return the gather floor with blocks of several sizes."""
    device, edges = problem.device, problem.graph.edges
    indices = device.arrays.uploaded(problem.graph.indices.astype(np.int32))
    at, starts = device.arrays.address(indices), [int(rows.addresses[0]) for rows in problem.sources]
    made = []
    for threads in FLOOR_THREADS:
        calls = [gather_floor(device, at, edges, first, problem.format, threads) for first in starts]
        made.append(Baseline(f"floor {threads}", calls, lambda: np.zeros(0), (indices,)))
    return made


def numbers(rows: Any) -> Any:
    """Return a copy of rows as a float32 tensor where they lie."""
    import torch

    if isinstance(rows, np.ndarray):
        return torch.from_numpy(rows.astype(np.float32))
    return rows.to(torch.float32, copy=True)


def returning(name: str, problem: Problem, sums_of: Callable[[Any], Any], about: str) -> Baseline:
    """Return a baseline whose calls allocate sums [n, dim], from rows [n, dim] without padding, as torch takes them."""
    dense = [problem.device.tensor(rows.local).contiguous() for rows in problem.sources]
    held: list[Any] = [None]

    def call(x: Any) -> None:
        held[0] = sums_of(x)

    return Baseline(name, [partial(call, x) for x in dense], lambda: numbers(held[0]), about=about)


def torch_(problem: Problem) -> Baseline:
    """Return torch.sparse.mm on a CSR tensor: cuSPARSE by torch's own choice of algorithm."""
    import torch

    device = problem.device
    indptr, indices, values = (device.tensor(array) for array in matrix(problem))
    shape = (problem.graph.nodes, problem.graph.nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that sparse tensors are in beta
        sparse_ = torch.sparse_csr_tensor(indptr, indices, values, shape, check_invariants=False)
    about = "cuSPARSE by torch's choice of algorithm; not preprocessed; the CSR tensor is kept"
    return returning("torch", problem, lambda x: torch.sparse.mm(sparse_, x), about)


def cupy_(problem: Problem) -> Baseline:
    """Return CuPy's spmm: cuSPARSE's default algorithm on column-major rows, the only layout that it takes."""
    import cupy
    import torch
    from cupyx import cusparse as cupyx_cusparse
    from cupyx.scipy.sparse import csr_matrix

    if problem.format.dtype != np.float32:
        raise RuntimeError(f"takes no matrix of {problem.format.dtype}")
    indptr, indices, values = (cupy.from_dlpack(problem.device.tensor(array)) for array in matrix(problem))
    shape = (problem.graph.nodes, problem.graph.nodes)
    sparse_ = csr_matrix((values, indices, indptr), shape=shape)
    sparse_.has_canonical_format = True  # sorted and without duplicates, as graphs are
    dense = [cupy.asfortranarray(cupy.from_dlpack(rows.local.contiguous())) for rows in problem.sources]
    out = cupy.zeros((problem.graph.nodes, problem.format.dim), cupy.float32, "F")
    calls = [partial(cupyx_cusparse.spmm, sparse_, x, c=out) for x in dense]
    about = "cuSPARSE's default algorithm, column-major rows; not preprocessed; the CSR matrix is kept"
    return Baseline(
        "cupy", calls, lambda: numbers(problem.device.tensor(torch.from_dlpack(out))), about=about
    )


def cusparse_(problem: Problem) -> Baseline:
    """Return cuSPARSE's CSR_ALG2, preprocessed, on this package's own rows."""
    device, graph, format = problem.device, problem.graph, problem.format
    arrays = matrix(problem)
    indptr, indices, values = (device.arrays.address(array) for array in arrays)

    def zeros(nbytes: int) -> tuple[Any, int]:
        memory = device.arrays.zeros(nbytes)
        return memory, device.arrays.address(memory)

    rows = (format.dtype.name, format.dim, format.stride)
    sizes, addresses = (graph.nodes, graph.edges), (indptr, indices, values)
    product = cusparse.Product(*sizes, addresses, rows, zeros, device.arrays.stream())
    x = [product.dense(int(one.addresses[0])) for one in problem.sources]
    out = [product.dense(device.arrays.address(one)) for one in problem.outputs]
    product.prepare(x[0], out[0])
    calls = [partial(product.run, *pair) for pair in zip(x, out, strict=True)]
    return Baseline("cusparse", calls, lambda: numbers(problem.outputs[-1]), arrays, cusparse.ABOUT)


def edge_list(problem: Problem, dtype: type) -> Any:
    """Return the edges as a tensor [2, E]: destinations, then sources."""
    graph, device = problem.graph, problem.device
    destination = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    return device.tensor(device.arrays.uploaded(np.stack([destination, graph.indices]).astype(dtype)))


def pyg_(problem: Problem) -> Baseline:
    """Return PyG's message passing over an edge list: each edge's message is gathered, then scattered."""
    from torch_geometric.nn import SimpleConv

    device, convolution = problem.device, SimpleConv(aggr="sum")
    edges, weight = edge_list(problem, np.int64).flip(0), None
    if problem.weight is not None:
        weight = device.tensor(device.arrays.uploaded(problem.weight.astype(problem.format.dtype)))
    about = "gather and scatter of an edge list; nothing is preprocessed; the edges are kept"
    return returning("pyg", problem, lambda x: convolution(x, edges, weight), about)


def pyg_csr_(problem: Problem) -> Baseline:
    """Return PyG's EdgeIndex, sorted and with its CSR cached: a sparse product."""
    from torch_geometric import EdgeIndex

    size = (problem.graph.nodes, problem.graph.nodes)
    edges = EdgeIndex(edge_list(problem, np.int32), sparse_size=size, sort_order="row")
    edges.fill_cache_(no_transpose=True)
    values = problem.device.tensor(matrix(problem)[2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that sparse tensors are in beta, said once
        edges.to_sparse_csr(values)
    about = "EdgeIndex.matmul, cuSPARSE by torch's choice of algorithm; sorted, with its CSR cached, which is kept"
    return returning("pyg-csr", problem, lambda x: edges.matmul(x, values), about)


MAKERS: dict[str, Callable[[Problem], Baseline]] = {
    "cusparse": cusparse_,
    "torch": torch_,
    "cupy": cupy_,
    "pyg": pyg_,
    "pyg-csr": pyg_csr_,
}
