"""Nodes and edges of several types, which are a range of numbers each in a graph of one numbering."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InputError
from ...plan.workload import prefix_sum
from ...runtime import mpi

EdgeType = tuple[str, str, str]


class Types:
    """This rank's nodes and edges by type.

    nodes: places of the nodes among this rank's rows, int64 [n_t], by name. edges: places of the edges in the graph's
    edge_index, int64 [E_t], by (source, name, destination). index: edge_index of each type, int64 [2, E_t], between the
    type's rows and, for sources, those of its halo after them. numbers: the graph's numbers of these rows, int64
    [n_t + H_t]. columns: of x. counts: of the nodes and edges on all ranks, by key.
    """

    def __init__(self, graph: Any) -> None:
        """graph: a DistGraph. Collective. Raises InputError for one without types, and if edges have other types than
        their ends.
        """
        index, halo = graph.edge_index(), graph.halo()
        source, target = index.cpu().numpy()
        where, low = graph.part.path, int(prefix_sum(graph.counts)[graph.rank])
        with mpi.agree(graph.comm):
            names, sizes, columns, kinds = _read(graph)
            kind = np.asarray(graph.part.slice.edge.get("type", np.full(len(source), -1))).reshape(-1)
            own = np.searchsorted(np.cumsum(sizes), torch.as_tensor(graph.ids).cpu().numpy(), "right")
            of = np.append(own, np.full(len(halo), -1))
            ends = np.array([[names.index(source), names.index(target)] for source, _, target in kinds])
            if (
                len(kind) != len(source)
                or kind.dtype.kind not in "iu"
                or kind.min(initial=0) < 0
                or kind.max(initial=0) >= len(kinds)
            ):
                raise InputError(
                    f"{where}: has {len(kinds)} types of edges, and data type of edges are others"
                )
            of[source] = ends[kind, 0]
            wrong = (of[: graph.rows] != own).any() or (of < 0).any() or (of[source] != ends[kind, 0]).any()
            if wrong or (own[target] != ends[kind, 1]).any():
                raise InputError(f"{where}: has edges of other types than those of their ends")
        number = np.empty(len(of), np.int64)
        rows, self.numbers = dict[str, Tensor](), dict[str, np.ndarray]()
        for place, name in enumerate(names):
            every = np.flatnonzero(of == place)
            number[every] = np.arange(len(every))
            mine = every < graph.rows
            rows[name] = torch.from_numpy(every[mine])
            self.numbers[name] = np.append(every[mine] + low, halo[every[~mine] - graph.rows])
        edges = {key: np.flatnonzero(kind == place) for place, key in enumerate(kinds)}
        both = np.stack([number[source], number[target]])
        self.nodes = {name: each.to(graph.device) for name, each in rows.items()}
        self.edges = {key: torch.from_numpy(each).to(graph.device) for key, each in edges.items()}
        self.index = {key: torch.from_numpy(both[:, each]).to(graph.device) for key, each in edges.items()}
        self.columns = dict(zip(names, columns, strict=True))
        of_edges = graph.comm.allreduce(np.bincount(kind, minlength=len(kinds)))
        self.counts = dict(zip([*names, *kinds], [*sizes, *of_edges.tolist()], strict=True))

    def joined(self, rows: Mapping[str, Tensor], where: str) -> Tensor:
        """Return rows of types [n_t, ...] as one tensor of all rows [n, ...]; where: begins messages."""
        if not isinstance(rows, Mapping):
            raise InputError(f"{where}: takes a dictionary of rows by type; this is a {type(rows).__name__}")
        rows = {name: each for name, each in rows.items() if each is not None}
        for name, each in rows.items():
            shape = list(each.shape) if isinstance(each, Tensor) else type(each).__name__
            if name not in self.nodes or shape[:1] != [len(self.nodes[name])]:
                have = ", ".join(f"{key} {len(places)}" for key, places in self.nodes.items())
                raise InputError(f"{where}: {name} is {shape}; of this rank's nodes there are {have}")
        if len({(each.shape[1:], each.dtype) for each in rows.values()}) != 1:
            raise InputError(f"{where}: takes rows of types with the same columns, of one at least")
        first = next(iter(rows.values()))
        out = first.new_zeros(sum(map(len, self.nodes.values())), *first.shape[1:])
        for name, each in rows.items():
            out = out.index_copy(0, self.nodes[name], each)
        return out


def _read(graph: Any) -> tuple[list[str], list[int], list[int], list[EdgeType]]:
    """Return names, numbers and columns of types of nodes, and types of edges. Raises InputError without these."""
    where = graph.part.path
    if not graph.part.types:
        raise InputError(
            f"{where}: has no types of nodes; mgg.from_pyg of a HeteroData, or mgg.save, keeps them"
        )
    try:
        held = json.loads(graph.part.types)
        nodes = [(str(name), int(count), int(columns)) for name, count, columns in held["nodes"]]
        kinds = [(str(source), str(name), str(target)) for source, name, target in held["edges"]]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: the attribute types is not as mgg.save writes it ({error})") from None
    names, sizes, columns = (list(each) for each in zip(*nodes, strict=True)) if nodes else ([], [], [])
    fits = (
        sum(sizes) == graph.num_nodes
        and min(sizes) >= 0
        and 0 <= min(columns) <= max(columns) <= graph.part.features
    )
    known = len(set(names)) == len(names) and len(set(kinds)) == len(kinds) > 0
    if not fits or not known or not {end for each in kinds for end in each[::2]} <= set(names):
        raise InputError(
            f"{where}: the attribute types is not that of {graph.num_nodes} nodes: {graph.part.types[:80]}"
        )
    return names, sizes, columns, kinds
