"""Grids of a streamed graph: intervals of rows that fit in memory, the plans of their edges, and edge data."""

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
from ..graph.matrix import check_order
from ..workspace import accumulator, row_format

EDGE_BYTES = 12  # of plans, per edge: an index, and a share of a segment and of its copy
CELL_BYTES = 52  # of a plan over one chunk, per row: a segment, its copy, and a degree

Names = tuple[str, ...]  # of edge data, whose columns are concatenated


@dataclass(frozen=True)
class Need:
    """Sizes that determine into how many intervals and chunks a grid is cut.

    source_bytes: bytes of a row in a chunk; 0 if rows are read in place. target_bytes: bytes kept in memory for
    each row of an interval. data: for each layer that reads edge data, the names of these.
    """

    source_bytes: int
    target_bytes: int
    data: frozenset[Names]

    def joined(self, other: Need) -> Need:
        """Return the smallest need that covers both."""
        source = max(self.source_bytes, other.source_bytes)
        return Need(source, max(self.target_bytes, other.target_bytes), self.data | other.data)


@dataclass(frozen=True, eq=False)
class Direction:
    """This rank's in-edges or out-edges, cut into kernel calls: one per interval, or per interval and chunk.

    targets: int64 [J + 1], bounds of the intervals of this rank's rows. of: number of the interval of each
    call. plans: plan of each call. order: the chunks to load, call by call. weights: for each plan the weights
    of its edges, [edges]; or None. data: for each tuple of names, the edge data of each plan, [edges, columns].
    """

    targets: NDArray[np.int64]
    of: list[int]
    plans: list[Plan]
    order: grids.Pass
    weights: list[Tensor] | None
    data: Mapping[Names, list[Tensor]]

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """Bounds of each interval: its first row, and the row after its last."""
        return list(pairwise(self.targets.tolist()))

    @property
    def used(self) -> list[int]:
        """Numbers of the intervals that are not empty; [0] if all are.

        All ranks have the same number of intervals, so that on ranks with fewer rows some are empty.
        """
        return [j for j, (low, high) in enumerate(self.intervals) if high > low] or [0]

    @property
    def calls(self) -> list[tuple[int, int]]:
        """Bounds of each call's interval: its first row, and the row after its last."""
        intervals = self.intervals
        return [intervals[each] for each in self.of]

    @property
    def largest(self) -> int:
        """Number of rows in the largest interval."""
        return max((plan.destinations for plan in self.plans), default=0)

    def degrees(self, call: int) -> Tensor:
        """Return the number of a call's edges into each row of its interval. call: number of the call."""
        plan, segments = self.plans[call], self.plans[call].segments
        return torch.from_numpy(np.bincount(segments["destination"], segments["count"], plan.destinations))


@dataclass(frozen=True, eq=False)
class Grid:
    """Both directions of an adjacency of a streamed graph.

    scale: [n] or None (`Matrix`). inverse_degree: [n]. need: the sizes for which it was cut. checked: keys of
    the edge types that layers have checked already, so that they check them once.
    """

    kind: str
    forward: Direction
    backward: Direction
    scale: Tensor | None
    inverse_degree: Tensor
    need: Need
    checked: set[Any] = field(default_factory=set)

    def edge_values(self, names: Names, *, weights: bool) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """Return the edge values of each forward plan, and of each backward plan.

        These are the edge data ``names``, concatenated; without names the weights if ``weights``, else None.
        """
        if names:
            return self.forward.data[names], self.backward.data[names]
        return (self.forward.weights, self.backward.weights) if weights else (None, None)


class Grids:
    """The grids of a streamed graph, one for each kind of adjacency, made when layers first need them.

    memory: bytes for plans and buffers, as in `Streaming`. in_place: True if rows are read in place.
    by_destination: True for the schedule "destination". cells: True to limit each call to one chunk, with any
    schedule. device: device of edge data. chains: groups of ranks that pass chunks on to each other.
    """

    def __init__(
        self,
        comm: Any,
        part: Part,
        dtype: torch.dtype,
        *,
        memory: int,
        in_place: bool,
        by_destination: bool,
        cells: bool,
        device: str,
        chains: Sequence[Sequence[int]],
    ) -> None:
        self._comm, self._part, self._dtype, self._wide = comm, part, dtype, accumulator(dtype)
        self._memory, self._in_place, self._chains, self._device = memory, in_place, chains, device
        self._by_destination, self._cells = by_destination, cells or by_destination
        self._cell_bytes = CELL_BYTES if cells else 0  # on CPUs only studies have cells
        self._first = int(part.bounds[comm.rank])
        self._made: dict[str, Grid] = {}

    def all(self) -> list[Grid]:
        """Return all grids that have been made."""
        return list(self._made.values())

    def clear(self) -> None:
        """Free the grids."""
        self._made = {}

    def get(self, kind: str, source_columns: int, target_columns: int, data: Names = ()) -> Grid:
        """Return the grid of an adjacency. It is cut again if this layer needs more than earlier ones.

        Collective. kind: "gcn" or "edges". source_columns: largest number of columns of rows in chunks.
        target_columns: largest number of values, of the accumulator's dtype, that are kept for each row of an
        interval. data: names of edge data that the grid must have, in both directions. Raises InputError, the
        same on all ranks, if ``memory`` is too small, and ValueError for edge data with "gcn".
        """
        if data:
            check_order(kind)
        of_source = 0 if self._in_place else row_format(source_columns, self._dtype).row_bytes
        names = frozenset([data] if data else [])
        need = Need(of_source, target_columns * self._wide.itemsize, names)
        if kind in self._made:
            made = self._made[kind]
            need = need.joined(made.need)
            if need == made.need:
                return made
            # Freed before the next one is made, unless layers still use it.
            del made, self._made[kind]
        with torch.inference_mode(False):
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
            sources, targets, crossing = exchange.transpose(self._comm, bounds, indptr, indices)
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
        """Return edge data of this rank's in-edges, concatenated to [E, D], in the accumulator's dtype."""
        wide = row_format(1, self._wide).dtype
        columns = [edge_data_of(self._part, name).astype(wide) for name in names]
        return np.concatenate([column.reshape(len(column), -1) for column in columns], 1)

    def _cut(self, edges: int, need: Need, weighted: bool) -> Division:
        """Return intervals of destinations and chunks of sources that fit in the memory which plans leave.

        Chunks are the same on all ranks. edges: number of edges. weighted: True if edges have weights. Raises
        InputError if not even the smallest intervals fit. Collective.
        """
        plans = max(self._comm.allgather(self._plan_bytes(edges, need, weighted)))
        edges = max(self._comm.allgather(edges))
        with mpi.agree(self._comm):
            most, nodes = int(np.diff(self._part.bounds).max()), self._part.nodes
            # Sums of a call, and of the calls before it; in the destination order `divided` counts both.
            sums = 2 if self._cells and not self._by_destination else 1
            each = RowBytes(
                need.source_bytes, sums * need.target_bytes, self._directions(need) * self._cell_bytes
            )
            cut = divided(self._memory - plans, most, nodes, edges, each, turned=self._by_destination)
            if cut is None:
                smallest = ROWS * (2 * each.source + each.target)
                # The minimum, over all numbers of chunks, of the bytes of two chunks and of the plans for all chunks.
                smallest += math.isqrt(8 * nodes * each.source * most * each.cell)
                raise InputError(
                    f"memory (plan.memory of a job): {sizes.shown(self._memory)} do not suffice, since plans of "
                    f"{edges:,} edges take {sizes.shown(plans)}, and the smallest intervals {sizes.shown(smallest)}; "
                    f"use at least {sizes.shown(2 * (plans + smallest))}"
                )
        rows = len(self._part.slice.indptr) - 1
        return replace(cut, targets=np.minimum(cut.targets, rows))

    def _directions(self, need: Need) -> int:
        """Return 2 if forward and backward need plans of their own, 1 if they share them."""
        return 1 + (self._part.directed or bool(need.data))

    def _plan_bytes(self, edges: int, need: Need, weighted: bool) -> int:
        """Return the bytes of this rank's edges in memory, and of the plans and edge data made from them.

        edges: number of edges in the plans.
        """
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
        made = []  # plans of each interval
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
            calls_of = grids.cell_calls(len(made), chunks, turned=self._by_destination)
        of, plans = [j for j, _ in calls_of], [made[j][at] for j, at in calls_of]
        first = indptr[cut.targets[:-1]][of].tolist()

        def of_plans(values: NDArray[Any]) -> list[Tensor]:
            """Return edge data in the order of each plan."""
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
