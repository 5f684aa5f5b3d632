"""`NeighborLoader`, mini-batches of a graph for programs with their own training loop."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...runtime import mpi
from ..graph.dist_graph import SPLITS, DistGraph
from .batches import Batch, Batches, Sampling
from .source import SharedEdges, Source


class NeighborLoader:
    """Batches of a graph's rows with sampled neighbours (Hamilton, Ying and Leskovec, NeurIPS 2017)::

        loader = mgg.NeighborLoader(graph, num_neighbors=[15, 10], batch_size=1024, split="train", shuffle=True)
        for batch in loader:
            h = conv1(batch.x, batch.blocks[0]).relu()
            out = conv2(h, batch.blocks[1])
            loss = batch.loss(out, F.cross_entropy)
            loss.backward()
            ...

    Each iteration over the loader is an epoch. A batch has ``batch_size`` rows of the whole graph, for any number of
    ranks; each rank gets its own rows among them, so all ranks take as many steps, and the backward of `Batch.loss`
    sums their gradients to the batch's. Random draws depend only on ``seed``, epoch, batch, layer and the user's node,
    so batches are the same on any number of ranks and threads.

    graph: from `mgg.open`. num_neighbors: number of in-edges to draw of each row, without replacement, -1 for all; one
    number for each layer, the last layer's first. batch_size: rows of a batch on all ranks together. split: "train",
    "val" or "test"; its labelled rows are used. input_nodes: rows of this rank to use instead, bool [n] or int64 [k].
    shuffle: use another order of the rows in each epoch. weight_attr: "weight" draws edges with probabilities
    proportional to their weights. drop_last: leave out an epoch's last batch if it is smaller. seed: 0 .. 2^63 - 1.
    prefetch: number of batches that threads sample ahead. edge_data: names of data of edges that layers use
    (``edge_attr``).

    Its construction and iteration are collective; it is closed with the graph. Raises InputError, the same on
    all ranks, for invalid arguments.
    """

    def __init__(
        self,
        graph: DistGraph,
        num_neighbors: Sequence[int],
        *,
        batch_size: int = 1,
        split: str = "train",
        input_nodes: Tensor | NDArray[Any] | None = None,
        shuffle: bool = False,
        weight_attr: str | None = None,
        drop_last: bool = False,
        seed: int = 0,
        prefetch: int = 2,
        edge_data: Sequence[str] = (),
    ) -> None:
        graph.check_open()
        with mpi.agree(graph.comm):
            if weight_attr not in (None, "weight"):
                raise InputError(
                    f'weight_attr is {weight_attr!r}; edges are drawn by their "weight", or evenly (None)'
                )
            if isinstance(edge_data, str):
                raise InputError(f"edge_data is {edge_data!r}; it is a list of names: [{edge_data!r}]")
            if isinstance(num_neighbors, str) or not hasattr(num_neighbors, "__iter__"):
                raise InputError(f"num_neighbors is {num_neighbors!r}; it is a list, a number for each layer")
            rows = _chosen(graph, split, input_nodes)
            how = Sampling(
                fanouts=tuple(_whole("num_neighbors", each) for each in num_neighbors),
                batch_size=_whole("batch_size", batch_size),
                shuffle=shuffle,
                seed=_whole("seed", seed),
                prefetch=_whole("prefetch", prefetch),
                drop_last=drop_last,
                weighted=weight_attr is not None,
            )
        source = _source_of(graph, edge_data)
        what = f"labelled nodes of the split {split!r}" if input_nodes is None else "input_nodes"
        self._graph = graph
        self._batches = Batches(source, rows, graph.y, how, what=what)
        self.epoch = 0

    def __len__(self) -> int:
        """Return the number of batches of an epoch, the same on all ranks."""
        return self._batches.steps

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch. Raises ValueError once the graph is closed."""
        self._graph.check_open()
        self.epoch += 1
        return self._batches.epoch(self.epoch)


_sources: WeakKeyDictionary[DistGraph, Source] = WeakKeyDictionary()  # the latest of each graph


def _source_of(graph: DistGraph, edge_data: Sequence[str]) -> Source:
    """Return a graph's source of batches, which its loaders share until graph.x is replaced. Collective."""
    held, names, edges = _sources.get(graph), frozenset(edge_data), None
    if held is not None:
        every = graph.comm.allgather((names <= held.edges.names, held.x is graph.x))
        if all(has_data and has_x for has_data, has_x in every):
            return held
        if all(has_data for has_data, _ in every):
            edges = held.edges
        names |= held.edges.names
    if edges is None:
        edges = SharedEdges(graph.comm, graph.part, edge_data=names)
    graph.on_close(edges.close)
    made = Source(
        graph.comm, graph.part.bounds, edges, graph.backend, graph.x, graph.dtype, reserve=graph.reserve
    )
    _sources[graph] = made
    graph.x = made.x  # one copy is enough
    graph.on_close(made.close)
    return made


def _whole(name: str, value: Any) -> int:
    """Return an integer argument. Raises InputError for other types."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError as error:
        raise InputError(f"{name} has {value!r}; it must be a whole number") from error


def _chosen(graph: DistGraph, split: str, input_nodes: Tensor | NDArray[Any] | None) -> NDArray[np.int64]:
    """Return this rank's rows to make batches of, ascending. Raises InputError for an invalid split or rows."""
    if input_nodes is None:
        if split not in SPLITS:
            raise InputError(f"split is {split!r}; there are {', '.join(SPLITS)}")
        mask: Tensor = getattr(graph, split)
        if graph.y is not None and graph.y.dim() == 1:
            mask = mask & (graph.y >= 0)
        return mask.nonzero().reshape(-1).cpu().numpy()
    given = torch.as_tensor(input_nodes).cpu()
    if given.dim() != 1 or given.is_floating_point():
        raise InputError(
            f"input_nodes is {given.dtype} {list(given.shape)}; expected bool [n] or integers [k]"
        )
    if given.dtype == torch.bool:
        if len(given) != graph.rows:
            raise InputError(f"input_nodes is bool [{len(given)}], and this rank has {graph.rows} nodes")
        return given.nonzero().reshape(-1).numpy()
    rows = np.unique(given.numpy().astype(np.int64))
    if len(rows) < len(given) or (len(rows) and not 0 <= rows[0] <= rows[-1] < graph.rows):
        raise InputError(f"input_nodes are distinct nodes of this rank, 0 .. {graph.rows - 1}")
    return rows
