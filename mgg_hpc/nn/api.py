"""Open a graph file, or a graph of another library in memory, for a custom training loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
import xxhash
from numpy.typing import ArrayLike

from ..data import libraries
from ..data.graph import Graph, SparseRows
from ..errors import InputError
from ..runtime import backends, mpi
from .graph.dist_graph import DistGraph
from .graph.loading import Part, check_symmetric, load_part, sliced
from .streaming.graph import StreamedGraph, Streaming
from .workspace import row_format

DTYPES = ("float32", "float64", "float16", "bfloat16")


class OpenOptions(TypedDict, total=False):
    """Keyword arguments of `open_graph`."""

    backend: str
    dtype: str
    threads: int
    transfer: str
    widest: int | None
    streaming: Streaming | None
    comm: Any


def open_graph(
    path: str | Path,
    *,
    backend: str = "auto",
    dtype: str = "float32",
    threads: int = 0,
    transfer: str = "auto",
    widest: int | None = None,
    streaming: Streaming | None = None,
    comm: Any = None,
) -> DistGraph:
    """Return this rank's part of a graph file, ready for layers; on one rank, the whole graph. Collective.

    backend: "auto", "serial", "shm", "shmem" or "cuda", as run.backend of a job. dtype: of rows; parameters of half
    ones are float32. threads: of this rank, torch's too. [default: OMP_NUM_THREADS, else its share of the cores]
    transfer: how remote rows are reached, "direct", "get" or "halo"; "auto" is direct where pointers reach all ranks,
    else halo. widest: columns of the widest rows that layers will exchange, whose memory is made at once then; where
    memory cannot grow (OpenSHMEM) they have to be known. [default: it grows as layers ask] comm: of mpi4py.
    [default: all ranks] streaming: how rows are streamed that do not fit in memory, a `Streaming`; the graph is a
    `StreamedGraph` then. Raises InputError, the same on all ranks, for a file or options that will not do.
    """
    options = OpenOptions(
        backend=backend,
        dtype=dtype,
        threads=threads,
        transfer=transfer,
        widest=widest,
        streaming=streaming,
        comm=comm,
    )
    return _opened(Path(path), options)


def from_scipy(
    matrix: Any,
    x: Any = None,
    y: ArrayLike | None = None,
    *,
    train: ArrayLike | None = None,
    val: ArrayLike | None = None,
    test: ArrayLike | None = None,
    **options: Unpack[OpenOptions],
) -> DistGraph:
    """Return the graph of a SciPy sparse matrix [N, N] that each rank passes: row i lists the sources of i's in-edges.

    Its values are their weights, unless all are 1. x: [N, F], dense or sparse. y: integers [N], -1 where unlabelled,
    or 0 and 1 [N, C]. train, val, test: bool [N]. options: as `open_graph` takes them. Collective. Raises InputError
    for what is not that.
    """
    return _taken(lambda: libraries.from_scipy(matrix, x, y, train=train, val=val, test=test), options)


def from_pyg(data: Any, **options: Unpack[OpenOptions]) -> DistGraph:
    """Return the graph of a torch_geometric Data that each rank passes: edge_index, edge_weight, x, y, train_mask etc.

    edge_attr becomes the data of edges "attr". options: as `open_graph` takes them. Collective. Raises InputError for
    other objects.
    """
    return _taken(lambda: libraries.from_pyg(data), options)


def from_dgl(graph: Any, **options: Unpack[OpenOptions]) -> DistGraph:
    """Return the graph of a homogeneous DGLGraph, which each rank passes, with ndata feat, label, train_mask and so on.

    edata["weight"] are its weights, other edata further data of edges. options: as `open_graph` takes them. Collective.
    Raises InputError for others.
    """
    return _taken(lambda: libraries.from_dgl(graph), options)


def from_networkx(
    graph: Any,
    x: Any = None,
    y: ArrayLike | None = None,
    *,
    train: ArrayLike | None = None,
    val: ArrayLike | None = None,
    test: ArrayLike | None = None,
    **options: Unpack[OpenOptions],
) -> DistGraph:
    """Return the graph of a networkx graph that each rank passes.

    Rows are in the order of graph.nodes, those of x, y and the masks too.

    The edge attribute "weight" counts where all edges have it. x, y, train, val, test and options: as `from_scipy`
    takes them. Collective. Raises InputError for other objects.
    """
    return _taken(lambda: libraries.from_networkx(graph, x, y, train=train, val=val, test=test), options)


def _taken(take: Callable[[], Graph], options: OpenOptions) -> DistGraph:
    """Open the graph of an object that each rank has. Collective: an object that one rank refuses is refused on all."""
    with mpi.agree(options.get("comm") or mpi.world()):
        graph = take()
    return _opened(graph, options)


def _opened(source: Path | Graph, options: OpenOptions) -> DistGraph:
    """Open a graph file, or a graph that each rank has in memory. Collective."""
    comm = options.get("comm") or mpi.world()
    dtype, widest = options.get("dtype", "float32"), options.get("widest") or 0
    with mpi.agree(comm):
        if dtype not in DTYPES:
            raise InputError(f"dtype: {dtype!r} is none of {', '.join(DTYPES)}")
    kind: torch.dtype = getattr(torch, dtype)
    taken = backends.choose(options.get("backend", "auto"), comm, dtype)
    threads = mpi.threads(comm, options.get("threads", 0))
    torch.set_num_threads(threads)
    with _part(source, comm) as part:
        if isinstance(source, Path):
            check_symmetric(comm, part)
        rows = row_format(widest or max(1, part.features), kind)
        made = backends.make(taken, comm, threads=threads, widest=rows)
        with backends.closed_on_error(made.memory.close):
            if (streaming := options.get("streaming")) is not None:
                return StreamedGraph(comm, part, made, kind, streaming)
            return DistGraph(comm, part, made, kind, options.get("transfer", "auto"), widest)


def _part(source: Path | Graph, comm: Any) -> Part:
    if isinstance(source, Path):
        return load_part(source, comm)
    every = comm.allgather(_digests(source) if comm.size > 1 else {})
    for rank, theirs in enumerate(every):
        other = next((name for name, digest in theirs.items() if digest != every[0][name]), None)
        if other is not None:
            raise InputError(
                f"{source.name}: {other} of rank {rank} are not those of rank 0; each rank passes the same graph"
            )
    return sliced(source, comm.rank, comm.size)


def _digests(graph: Graph) -> dict[str, int]:
    """Return digests of the arrays that all ranks must have alike, by the name that a message uses."""
    x = graph.x
    features = (x.indptr, x.indices, x.data) if isinstance(x, SparseRows) else (x,)
    fields = {
        "the edges": (graph.indptr, graph.indices),
        "the weights": (graph.weight,),
        "the data of edges": tuple(graph.edge[name] for name in sorted(graph.edge)),
        "the features x": features,
        "the labels y": (graph.y,),
        "the train masks": (graph.train,),
        "the val masks": (graph.val,),
        "the test masks": (graph.test,),
    }
    return {name: _digest(arrays) for name, arrays in fields.items()}


def _digest(arrays: tuple[np.ndarray | None, ...]) -> int:
    """Return a digest of the types, shapes and bytes of arrays, of which some may be None."""
    digest = xxhash.xxh3_64()
    for array in arrays:
        if array is None:
            digest.update(b"None")
            continue
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.intdigest()
