"""Functions for programs with their own training loop: open a graph, sum gradients over ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack
from weakref import WeakSet

import torch
from numpy.typing import ArrayLike

from ..data import libraries
from ..data.graph import Graph, SparseRows
from ..errors import InputError
from ..runtime import backends, mpi
from ..runtime.watchdog import collective, watch_calls
from .gradients import check_alike, digest, sum_gradients
from .graph.dist_graph import DistGraph, open_graphs
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
    watchdog: float
    comm: Any


def open_graph(
    path: str | Path | Graph,
    *,
    backend: str = "auto",
    dtype: str = "float32",
    threads: int = 0,
    transfer: str = "auto",
    widest: int | None = None,
    streaming: Streaming | None = None,
    watchdog: float = 3600.0,
    comm: Any = None,
) -> DistGraph:
    """Return this rank's part of a graph, ready for layers; on one rank, the whole graph. Collective.

    path: a graph file, or a `Graph` that every rank has in memory. backend: "auto", "serial", "shm", "shmem" or "cuda",
    as run.backend of a job. dtype: of rows; parameters for half precision are float32. threads: number of threads of
    this rank, including torch's. [default: OMP_NUM_THREADS, else its share of the cores] transfer: how remote rows are
    fetched, "direct", "get" or "halo"; "auto" is direct if pointers reach all ranks, else halo. widest: columns of the
    widest rows that layers will exchange, whose memory is allocated at once; needed if memory cannot grow (OpenSHMEM).
    [default: memory grows as layers request rows] streaming: a `Streaming` to keep rows outside of memory and return a
    `StreamedGraph`. watchdog: seconds that a collective call may take before all ranks end and name their calls; 0 for
    no limit. comm: an mpi4py communicator. [default: all ranks] Raises InputError, the same on all ranks, for an
    invalid file or option.
    """
    comm = comm or mpi.world()
    with mpi.agree(comm):
        if dtype not in DTYPES:
            raise InputError(f"dtype: {dtype!r} is none of {', '.join(DTYPES)}")
    kind: torch.dtype = getattr(torch, dtype)
    chosen = backends.choose(backend, comm, dtype)
    threads = mpi.threads(comm, threads)
    torch.set_num_threads(threads)
    with _part(path, comm) as part:
        if not isinstance(path, Graph):
            check_symmetric(comm, part)
        rows = row_format(widest or max(1, part.features), kind)
        made = backends.make(chosen, comm, threads=threads, widest=rows)
        if comm.size > 1:
            watch_calls(comm.rank, watchdog)
        with backends.closed_on_error(made.memory.close):
            if streaming is not None:
                return StreamedGraph(comm, part, made, kind, streaming)
            return DistGraph(comm, part, made, kind, transfer, widest or 0)


def from_scipy(
    matrix: Any,
    x: Any = None,
    y: ArrayLike | None = None,
    *,
    train: ArrayLike | None = None,
    val: ArrayLike | None = None,
    test: ArrayLike | None = None,
    transpose: bool = False,
    **options: Unpack[OpenOptions],
) -> DistGraph:
    """Return the graph of a SciPy sparse matrix [N, N], which every rank passes; entry (i, j) is the edge i -> j.

    The values are weights, unless they are bool. x: features [N, F], dense or sparse. y: classes [N] or [N, 1], -1
    for unlabelled nodes, or 0 and 1 [N, C]. train, val, test: bool [N]. transpose: entry (i, j) is the edge j -> i.
    options: as for `open_graph`. Collective. Raises InputError for other arguments.
    """
    masks = {"train": train, "val": val, "test": test}
    return _from_object(lambda: libraries.from_scipy(matrix, x, y, **masks, transpose=transpose), options)


def from_pyg(data: Any, *, split: int | None = None, **options: Unpack[OpenOptions]) -> DistGraph:
    """Return the graph of a torch_geometric Data, which every rank passes: edge_index, edge_weight, x, y, train_mask...

    edge_attr becomes the data of edges "attr". What is left out is named in a warning, as by the functions below.
    split: column of masks [N, S]. options: as for `open_graph`. Collective. Raises InputError for other objects.
    """
    return _from_object(lambda: libraries.from_pyg(data, split=split), options)


def from_dgl(graph: Any, *, split: int | None = None, **options: Unpack[OpenOptions]) -> DistGraph:
    """Return the graph of a homogeneous DGLGraph, which every rank passes, with ndata feat, label, train_mask...

    edata["weight"] are the weights, other edata are data of edges. split: column of masks [N, S]. options: as for
    `open_graph`. Collective. Raises InputError for other objects.
    """
    return _from_object(lambda: libraries.from_dgl(graph, split=split), options)


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
    """Return the graph of a networkx graph, which every rank passes. Rows are in the order of graph.nodes.

    The edge attribute "weight" is used if any edge has it; edges without it have 1. x, y, train, val, test,
    options: as for `from_scipy`, in the same order. Collective. Raises InputError for other objects.
    """
    return _from_object(
        lambda: libraries.from_networkx(graph, x, y, train=train, val=val, test=test), options
    )


def _from_object(convert: Callable[[], Graph], options: OpenOptions) -> DistGraph:
    """Open the graph of an object that each rank has. Collective: an object that one rank refuses is refused on all."""
    comm = options.get("comm") or mpi.world()
    with mpi.agree(comm), warnings.catch_warnings():
        if comm.rank:  # rank 0 says what is left out
            warnings.simplefilter("ignore")
        graph = convert()
    return open_graph(graph, **options)


def _part(source: str | Path | Graph, comm: Any) -> Part:
    """Return this rank's part. Collective. Raises InputError if ranks have different graphs in memory."""
    if not isinstance(source, Graph):
        return load_part(Path(source), comm)
    every = comm.allgather(_digests(source) if comm.size > 1 else {})
    for rank, theirs in enumerate(every):
        other = next((name for name, digest in theirs.items() if digest != every[0][name]), None)
        if other is not None:
            raise InputError(
                f"{source.name}: {other} of rank {rank} are not those of rank 0; each rank passes the same graph"
            )
    return sliced(source, comm.rank, comm.size)


def _digests(graph: Graph) -> dict[str, int]:
    """Return digests of the arrays that must be the same on all ranks, by the names that messages use."""
    x = graph.x
    features = (x.indptr, x.indices, x.data) if isinstance(x, SparseRows) else (x,)
    fields: dict[str, tuple[Any, ...]] = {
        "the edges": (graph.indptr, graph.indices),
        "the weights": (graph.weight,),
        "the data of edges": tuple(graph.edge[name] for name in sorted(graph.edge)),
        "the features x": features,
        "the labels y": (graph.y,),
        "the train masks": (graph.train,),
        "the val masks": (graph.val,),
        "the test masks": (graph.test,),
        "the types": (torch.tensor(list(graph.types.encode()), dtype=torch.uint8),),
    }
    return {name: digest(*arrays) for name, arrays in fields.items()}


# ---- gradients

_alike: WeakSet[torch.nn.Module] = WeakSet()  # models whose parameters were found to be the same on all ranks


@collective("allreduce_gradients")
def allreduce_gradients(model: torch.nn.Module, graph: DistGraph | None = None) -> None:
    """Replace the gradient of each parameter by its sum over all ranks, the same bits on each rank. Collective.

    Call it between backward and the optimiser's step, after a loss of your own: a backward of `DistGraph.loss` or
    `Batch.loss` has summed them already, and they stay as they are. All gradients are sent in one exchange. A gradient
    that is None on this rank counts as zero; one that is None on all ranks stays None. graph: its ranks take part.
    [default: the graph that was opened last] Raises InputError if no graph is open, and, at the first call for a model,
    if its parameters differ between ranks.
    """
    if graph is None:
        if not open_graphs:
            raise InputError("allreduce_gradients: no graph is open; open one first (mgg.open)")
        graph = open_graphs[-1]
    if graph.ranks == 1:
        return
    if model not in _alike:
        check_alike("allreduce_gradients", model.state_dict(keep_vars=True), graph.comm)
        _alike.add(model)
    sum_gradients([each for each in model.parameters() if each.requires_grad], graph.backend.collectives)
