"""Grids of a streamed graph: how rows are cut so that they fit, the plans of the intervals, and values of edges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ... import sizes
from ...errors import InputError
from ...plan import grid as grids
from ...plan.grid import ROWS, Division, RowBytes, divided
from ...plan.workload import Plan
from ...runtime import exchange, mpi
from ..graph.loading import Part, edge_data_of, weighted_edges
from ..workspace import accumulator, row_format

EDGE_BYTES = 12  # of a plan, for each edge: an index, and a segment and its copy for every few
CELL_BYTES = 52  # of a plan of one chunk, for each row: a segment, its copy, and a degree

Names = tuple[str, ...]  # of data of edges, whose columns lie beside each other


@dataclass(frozen=True)
class Need:
    """Widths of rows that a grid is cut for.

    source_bytes: of a row that streams past; 0 where rows are read in place. target_bytes: that each row of an interval
    keeps. data: names of the data of edges that layers read, those of each layer together.
    """

    source_bytes: int
    target_bytes: int
    data: frozenset[Names]

    def joined(self, other: Need) -> Need:
        """Return what suffices for both."""
        source = max(self.source_bytes, other.source_bytes)
        return Need(source, max(self.target_bytes, other.target_bytes), self.data | other.data)


@dataclass(frozen=True, eq=False)
class Direction:
    """A grid of this rank's rows in one direction.

    targets: int64 [J + 1], bounds of the intervals of these rows. of: the interval of each call: each once, or once for
    each chunk. plans: of each call. order: what is loaded for all calls. weights: of each
    plan's edges, or None. data: by names, of each plan's edges, [edges, columns].
    """

    targets: NDArray[np.int64]
    of: list[int]
    plans: list[Plan]
    order: grids.Pass
    weights: list[Tensor] | None
    data: Mapping[Names, list[Tensor]]

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """The intervals of this rank's rows."""
        bounds = self.targets.tolist()
        return list(pairwise(bounds))

    @property
    def used(self) -> list[int]:
        """Numbers of the intervals that have rows, or of the first: ranks with fewer rows have some without any."""
        return [j for j, (low, high) in enumerate(self.intervals) if high > low] or [0]

    @property
    def calls(self) -> list[tuple[int, int]]:
        """The interval of this rank's rows of each call."""
        intervals = self.intervals
        return [intervals[each] for each in self.of]

    @property
    def largest(self) -> int:
        """Number of rows of the largest call."""
        return max((plan.destinations for plan in self.plans), default=0)

    def degrees(self, call: int) -> Tensor:
        """Return the number of edges of a call into each row of its interval."""
        plan = self.plans[call]
        segments = plan.segments
        return torch.from_numpy(np.bincount(segments["destination"], segments["count"], plan.destinations))


@dataclass(frozen=True, eq=False)
class Grid:
    """Both directions of an adjacency. scale: [n] or None (`Matrix`). inverse_degree: [n]. need: what it was cut for.
    checked: what layers have found their data of edges to be, so that they look once.
    """

    kind: str
    forward: Direction
    backward: Direction
    scale: Tensor | None
    inverse_degree: Tensor
    need: Need
    checked: set[Any] = field(default_factory=set)


class Grids:
    """The grids of a graph, one for each kind of adjacency, as layers have asked for them so far.

    memory: as for `Streaming`. in_place: whether rows are read where they lie. turned: whether they are of the
    destination order. cells: whether calls take one chunk. device: of the values of edges. chains: of ranks that pass
    chunks on.
    """

    def __init__(
        self,
        comm: Any,
        part: Part,
        dtype: torch.dtype,
        *,
        memory: int,
        in_place: bool,
        turned: bool,
        cells: bool,
        device: str,
        chains: Sequence[Sequence[int]],
    ) -> None:
        self._comm, self._part, self._dtype, self._wide = comm, part, dtype, accumulator(dtype)
        self._memory, self._in_place, self._chains, self._device = memory, in_place, chains, device
        self._turned, self._cells = turned, cells or turned
        self._cell_bytes = CELL_BYTES if cells else 0  # on CPUs cells are of a study alone
        self._first = int(part.bounds[comm.rank])
        self._made: dict[str, Grid] = {}

    def all(self) -> list[Grid]:
        """Return the grids that there are."""
        return list(self._made.values())

    def forget(self) -> None:
        """Let go of them."""
        self._made = {}

    def get(self, kind: str, source_columns: int, target_columns: int, data: Names = ()) -> Grid:
        if kind == "gcn" and data:
            raise ValueError("data of edges have no order in an adjacency of kind 'gcn'")
        of_source = 0 if self._in_place else row_format(source_columns, self._dtype).row_bytes
        names = frozenset([data] if data else [])
        need = Need(of_source, target_columns * self._wide.itemsize, names)
        if kind in self._made:
            made = self._made[kind]
            need = need.joined(made.need)
            if need == made.need:
                return made
            del made, self._made[kind]  # unless layers still have it, it is gone before the next one is made
        self._made[kind] = self._planned(kind, need)
        return self._made[kind]

    def _planned(self, kind: str, need: Need) -> Grid:
        edges, bounds = self._part.slice, self._part.bounds
        taken = edges.indptr, edges.indices, edges.weight
        indptr, indices, weight, factor = weighted_edges(kind, self._first, *taken)
        data = {names: self._columns(names) for names in sorted(need.data)}
        cut = self._cut(len(indices), need, weight is not None)
        forward = backward = self._direction(cut, indptr, indices, weight, data)
        if self._part.directed or data:
            sources, targets, crossing = exchange.transposed(self._comm, bounds, indptr, indices)
            crossed = None if weight is None else crossing.carry(self._comm, weight)
            data = {names: crossing.carry(self._comm, values) for names, values in data.items()}
            backward = self._direction(cut, sources, targets, crossed, data)
        inverse = torch.from_numpy(1.0 / np.maximum(np.diff(indptr), 1))
        scale = torch.from_numpy(factor) if kind == "gcn" and factor is not None else None
        return Grid(
            kind=kind,
            forward=forward,
            backward=backward,
            scale=None if scale is None else scale.to(self._device, self._wide),
            inverse_degree=inverse.to(self._device, self._wide),
            need=need,
        )

    def _columns(self, names: Names) -> NDArray[Any]:
        """Return data of this rank's edges beside each other, [E, D] of the accumulator's type."""
        wide = row_format(1, self._wide).dtype
        columns = [edge_data_of(self._part, name).astype(wide) for name in names]
        return np.concatenate([column.reshape(len(column), -1) for column in columns], 1)

    def _cut(self, edges: int, need: Need, weighted: bool) -> Division:
        """Return the intervals that fit beside the plans, which stay in memory; the sources' are those of all ranks."""
        plans = max(self._comm.allgather(self._plan_bytes(edges, need, weighted)))
        edges = max(self._comm.allgather(edges))
        with mpi.agree(self._comm):
            most, nodes = int(np.diff(self._part.bounds).max()), self._part.nodes
            # Beside the sums of a call there are those of the calls before; for turned grids `divided` counts both.
            sums = 2 if self._cells and not self._turned else 1
            each = RowBytes(
                need.source_bytes, sums * need.target_bytes, self._directions(need) * self._cell_bytes
            )
            cut = divided(self._memory - plans, most, nodes, edges, each, turned=self._turned)
            if cut is None:
                smallest = ROWS * (2 * each.source + each.target)
                # The least of what two chunks take, and plans for each, over all numbers of chunks.
                smallest += math.isqrt(8 * nodes * each.source * most * each.cell)
                raise InputError(
                    f"memory (plan.memory of a job): {sizes.shown(self._memory)} do not suffice, since plans of "
                    f"{edges:,} edges take {sizes.shown(plans)}, and the smallest intervals {sizes.shown(smallest)}; "
                    f"use at least {sizes.shown(2 * (plans + smallest))}"
                )
        rows = len(self._part.slice.indptr) - 1
        return replace(cut, targets=np.minimum(cut.targets, rows))

    def _directions(self, need: Need) -> int:
        """Return the number of directions that plans are made for."""
        return 1 + (self._part.directed or bool(need.data))

    def _plan_bytes(self, edges: int, need: Need, weighted: bool) -> int:
        """Return the bytes of this rank's part of the edges, and of plans and values of so many of them."""
        held, wide = self._part.slice, self._wide.itemsize
        arrays = held.indices, *held.edge.values(), *([] if held.weight is None else [held.weight])
        shapes = [edge_data_of(self._part, name).shape[1:] for names in need.data for name in names]
        columns = weighted + sum(math.prod(shape) for shape in shapes)
        return (
            sum(array.nbytes for array in arrays)
            + self._directions(need) * (EDGE_BYTES + columns * wide) * edges
        )

    def _direction(
        self,
        cut: Division,
        indptr: NDArray[np.int64],
        indices: NDArray[np.integer],
        weight: NDArray[Any] | None,
        data: Mapping[Names, NDArray[Any]],
    ) -> Direction:
        bounds, chunks = cut.targets.tolist(), len(cut.sources) - 1
        keeps = weight is not None or bool(data)
        made = []  # of each interval
        for j, (low, high) in enumerate(pairwise(bounds)):
            mine = indices[int(indptr[low]) : int(indptr[high])]
            rows = indptr[low : high + 1] - indptr[low]
            if self._cells:
                made.append(grids.cell_plans(cut.sources, rows, mine, keep_edges=keeps))
            else:
                plan = grids.grid_plan(
                    cut.sources, grids.reading_order(j, chunks), rows, mine, keep_edges=keeps
                )
                made.append([plan])
        calls_of = [(j, 0) for j in range(len(made))]
        if self._cells:
            calls_of = grids.cell_calls(len(made), chunks, turned=self._turned)
        of, plans = [j for j, _ in calls_of], [made[j][at] for j, at in calls_of]
        first = indptr[cut.targets[:-1]][of].tolist()

        def of_plans(values: NDArray[Any]) -> list[Tensor]:
            """Return values of edges in the order of each plan."""
            return [
                torch.from_numpy(values[low + plan.edge]).to(self._device, self._wide)
                for plan, low in zip(plans, first, strict=True)
            ]

        weights = None if weight is None else of_plans(weight)
        values = {names: of_plans(each) for names, each in data.items()}
        plans = [replace(plan, edge=None) for plan in plans]
        calls = [grids.chunks_of(plan) for plan in plans]
        if self._chains:
            calls = grids.joint_calls(self._comm.allgather(calls))
            plans = [
                grids.with_chunks(plan, cut.sources, call) for plan, call in zip(plans, calls, strict=True)
            ]
        return Direction(
            cut.targets, of, plans, grids.replacement(cut.sources, calls, cut.slots), weights, values
        )
