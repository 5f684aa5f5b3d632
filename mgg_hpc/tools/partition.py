"""`mgg partition`: renumber the rows of a graph file, and add row ranges for a number of ranks to it.

A file that is renumbered is built again from its own edges and rows, in bounded memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ..config import TrainSettings
from ..data import checks, schema
from ..data.assembly import build_graph
from ..data.assembly.graph import LEAST_MEMORY
from ..data.atomic_write import temporary
from ..data.edge_stream import Imported
from ..data.graph import Graph
from ..data.readers import npy
from ..data.readers.graph_file import NumberedEdges, renumbered, slices
from ..data.store import GraphFile, open_graph
from ..data.writer import Partition, write_bounds
from ..errors import InputError
from ..plan import order, partitioners, scores
from ..plan.partitioners import SliceOfRows, SymmetricEdges
from ..plan.row_ranges import edge_balanced, edge_counts
from ..plan.workload import prefix_sum
from ..sizes import counted
from .importing import default_memory
from .terminal import phases, waiting

Numbers = NDArray[np.int64]
NODE_BYTES = 48  # held for each node: an order, its inverse, ids, offsets of rows before and after


@dataclass(frozen=True)
class Request:
    """What a user wants: how rows are renumbered, and the row ranges that are added.

    Args:
        parts: number of ranks to add ranges for, or None for no ranges.
        method: one of `partitioners.METHODS`.
        renumbering: one of `order.METHODS`, "visits", or None to keep the order of rows.
        assignment: .npy file with the part of each node, for the method "given".
        fanouts, batch: of the mini-batches whose reads "visits" expects.
    """

    parts: int | None
    method: str = "edges"
    renumbering: str | None = None
    assignment: Path | None = None
    fanouts: Sequence[int] = ()
    batch: int = 0

    @property
    def label(self) -> str:
        """Name of the order that the file records."""
        return self.renumbering or "none" if self.method == "edges" else f"{self.method}-{self.parts}"

    @property
    def needs_pattern(self) -> bool:
        """Whether the edges are needed, to partition the graph or to find an order of its rows."""
        return self.renumbering in ("rcm", "community") or self.method in partitioners.FOUND


@dataclass(frozen=True, eq=False)
class Arrangement:
    """New rows of a graph file.

    Args:
        ids: int64 [N], the user's id of each new row.
        moved: int64 [N], the present row that becomes each new row.
        bounds: int64 [P + 1], row ranges by a partitioner, or None for edge-balanced ranges.
    """

    ids: Numbers
    moved: Numbers
    bounds: Numbers | None

    @property
    def identity(self) -> bool:
        """Whether each row stays where it is."""
        return bool((self.moved == np.arange(len(self.moved))).all())


def process_partition(path: Path, *, memory: int | None = None, **options: Any) -> None:
    """Renumber the rows of a graph file, add row ranges, or both, in one replacement of the file; print both.

    Args:
        memory: bytes to use. [default: half of the machine's]
        options: fields of `Request`.
    """
    request = _request(**options)
    with open_graph(path) as opened:
        if request.method == "edges" and request.renumbering is None:
            assert request.parts is not None
            indptr = opened.indptr()
            ranges: Partition | None = _counted(indptr, edge_balanced(indptr, request.parts), "edges")
        else:
            ranges = _renumber(opened, request, memory or default_memory())
    if ranges is not None:
        write_bounds(path, len(ranges.edge_counts), ranges.bounds, ranges.method, ranges.edge_counts)
    if request.parts is not None:
        _print_bounds(path, request.parts)


def _request(
    parts: int | None,
    method: str,
    renumbering: str | None,
    assignment: Path | None = None,
    fanouts: Sequence[int] = (),
    batch: int | None = None,
) -> Request:
    """Return the request that options make. Raises InputError for options that do not go together."""
    if renumbering == "visits" and not fanouts:
        raise InputError("--order visits needs --fanouts, as train.fanouts of the job: for example 15,10,5")
    if renumbering != "visits" and (fanouts or batch):
        raise InputError("--fanouts and --batch-size are of --order visits")
    batch = batch or TrainSettings().batch_size
    if assignment is not None:
        if method not in ("edges", "given"):
            raise InputError(f"--assignment does not go with --method {method}; it is for --method given")
        return Request(parts or parts_of(assignment), "given", renumbering, assignment, fanouts, batch)
    if method == "given":
        raise InputError("--method given needs --assignment with the part of each node")
    if method != "edges" and parts is None:
        raise InputError(f"--method {method} needs -n with a number of parts")
    if parts is None and renumbering is None:
        raise InputError("nothing to do; expected -n with a number of parts, --order with a method, or both")
    return Request(parts, method, renumbering, None, fanouts, batch)


def parts_of(path: Path) -> int:
    """Return the number of parts of an assignment: its largest value plus one.

    Raises InputError unless it has integers, and for a part of MOST_PARTS or more, with its row.
    """
    values = npy.open_array(path).whole()
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values):
        raise InputError(
            f"{path} is {values.dtype} {list(values.shape)}; expected the part of each node, integers [N]"
        )
    row = int(values.argmax())
    largest = int(values[row])
    if largest >= partitioners.MOST_PARTS:
        raise InputError(
            f"{path}: row {row} has the part {largest}; expected 0 .. {partitioners.MOST_PARTS - 1}, for at most "
            f"{partitioners.MOST_PARTS:,} parts"
        )
    return max(1, largest + 1)


# ---- which row goes where -------------------------------------------------------------------------------


def arrange(opened: GraphFile, request: Request, *, memory: int) -> Arrangement:
    """Find the new rows. They do not depend on the present numbering if an order is requested.

    Args:
        memory: bytes to use.

    Raises InputError if a method needs more memory or a library that is missing, and for an assignment that does not
    fit the graph.
    """
    ids = user_ids(opened)
    present = np.arange(opened.nodes, dtype=np.int64) if ids is None else ids
    edges = opened.edges * (1 + opened.directed)
    if request.renumbering in ("rcm", "community"):
        order.check_size(request.renumbering, opened.nodes, edges, where=opened.where, available=memory)
    if request.method in partitioners.FOUND:
        partitioners.check_memory(request.method, opened.nodes, edges, memory)
    assigned = None
    if request.assignment is not None and request.parts is not None:
        values = npy.open_array(request.assignment).whole()
        assigned = partitioners.checked(str(request.assignment), values, opened.nodes, request.parts)
    with ExitStack() as stack:
        pattern = None
        if request.needs_pattern:
            pattern = stack.enter_context(original_pattern(opened, memory=memory))
        if request.renumbering == "visits":
            found = _by_visits(opened, present, request, memory)
        else:
            found = _ordered(opened, present, pattern, request.renumbering)
        if pattern is not None and request.method in partitioners.FOUND:
            assert request.parts is not None
            assigned = partitioners.FOUND[request.method](pattern, request.parts)
    bounds = None
    if assigned is not None and request.parts is not None:
        found, bounds = partitioners.arranged(assigned, request.parts, found)
    return Arrangement(found, found if ids is None else order.inverse(ids)[found], bounds)


def _ordered(
    opened: GraphFile, present: Numbers, pattern: SymmetricEdges | None, method: str | None
) -> Numbers:
    """Return the user's ids in an order, int64 [N]. present: the ids in the order of the file's rows."""
    if method is None:
        return present
    if method == "none":
        return np.arange(opened.nodes, dtype=np.int64)
    if method == "degree":
        degree = np.empty(opened.nodes, np.int64)
        degree[present] = np.diff(opened.indptr())
        return order.by_degree(prefix_sum(degree))
    assert pattern is not None
    return order.permutation(Graph(opened.name, *pattern.whole(np.int32), directed=False), method)


def _by_visits(opened: GraphFile, present: Numbers, request: Request, memory: int) -> Numbers:
    """Return the user's ids by descending chance that a mini-batch reads their rows, int64 [N]; equal ones by id."""
    order.check_size("visits", opened.nodes, opened.edges, where=opened.where, available=memory)
    if schema.TRAIN not in opened.contents.datasets:
        raise InputError(
            f"{opened.where}: --order visits is for graphs with a split (train), and this has none"
        )
    with opened.compared():
        train = opened.checked(schema.TRAIN, 0, opened.nodes).astype(bool)
    pull = scores.puller(opened.nodes, lambda: slices(opened))
    degree = np.diff(opened.indptr())
    found = scores.visits(pull, degree, train, request.fanouts, request.batch, ids=present)
    score = np.empty(opened.nodes, np.float32)  # the same for any order in which sums were rounded
    score[present] = found
    return scores.order(score)


def user_ids(opened: GraphFile) -> Numbers | None:
    """Return the user's id of each row, int64 [N]; None if ids are the row numbers.

    Raises InputError unless each id occurs once.
    """
    if schema.PERMUTATION not in opened.contents.datasets:
        return None
    with opened.compared():
        ids = opened.checked(schema.PERMUTATION, 0, opened.nodes)
        checks.original_ids(opened.where, ids, 0, opened.nodes)
    again = np.flatnonzero(np.bincount(ids, minlength=opened.nodes) > 1)
    if len(again):
        raise InputError(
            f"{opened.where}: /{schema.PERMUTATION} has {again[0]} more than once; each original id comes once"
        )
    return ids


@contextmanager
def original_pattern(opened: GraphFile, *, memory: int) -> Iterator[SymmetricEdges]:
    """Yield the symmetric pattern of the edges under the user's ids: the same for any numbering of the rows."""
    ids = user_ids(opened)
    place = np.arange(opened.nodes) if ids is None else ids
    weight = np.ones(opened.nodes, np.int64)
    weight[place] += np.diff(opened.indptr())
    with ExitStack() as stack:
        edges = opened
        if ids is not None or opened.directed:
            edges = stack.enter_context(numbered(opened, place, memory=memory, symmetric=opened.directed))
        yield SymmetricEdges(edges.edges, weight, lambda: (SliceOfRows(*each) for each in slices(edges)))


@contextmanager
def numbered(
    opened: GraphFile, place: Numbers, *, memory: int, symmetric: bool = False
) -> Iterator[GraphFile]:
    """Yield a temporary graph file that has only the edges, with other node numbers.

    Args:
        place: int64 [N], the new number of each row.
        symmetric: add the reverse of each edge, and drop duplicates.
    """
    source = opened.path.resolve()
    path = temporary(source.with_name(f"{source.name}.edges"))
    edges = Imported(opened.name, NumberedEdges(opened, place, data=False), directed=True)
    try:
        build_graph(edges, path, memory=memory, symmetric=symmetric, force=True)
        found = open_graph(path)
    finally:
        path.unlink(missing_ok=True)
    with found:
        yield found


# ---- renumbering ----------------------------------------------------------------------------------------


def free_memory(opened: GraphFile, memory: int) -> int:
    """Return the bytes of ``memory`` that are left after the arrays with a number for each node.

    Raises InputError if they are too few for a build.
    """
    free = memory - NODE_BYTES * opened.nodes
    least = LEAST_MEMORY * 8 // 7 + 1
    if free < least:
        needed = least + NODE_BYTES * opened.nodes
        raise InputError(
            f"{opened.where}: renumbering {opened.nodes:,} nodes takes {-(-needed >> 20):,} MiB of memory at least, "
            f"and has {memory >> 20:,} MiB: give more by --memory"
        )
    return free


def _renumber(opened: GraphFile, request: Request, memory: int) -> Partition | None:
    """Renumber the rows, and add ranges; return the ranges that are still to be added if the rows stay as they are."""
    began = time.perf_counter()
    free, label = free_memory(opened, memory), request.label
    with waiting(f"ordering {counted(opened.edges, 'edge')} ({label})"):
        found = arrange(opened, request, memory=free)
    indptr = prefix_sum(np.diff(opened.indptr())[found.moved])
    ranges = None
    if request.parts is not None:
        bounds = edge_balanced(indptr, request.parts) if found.bounds is None else found.bounds
        ranges = _counted(indptr, bounds, request.method)
    if found.identity and (request.renumbering is None or opened.order in ("", label)):
        print(f"{opened.where}: the nodes are in this order already ({label})")
        return ranges
    _rewrite(opened, found, indptr, ranges, label, free)
    print(f"{opened.where}: nodes renumbered ({label}) in {time.perf_counter() - began:.1f} s")
    with waiting("measuring"):
        before, after = _localities(opened, order.inverse(found.moved))
    print(f"  mean log2 of an edge's length: {before.gap:.1f} before, {after.gap:.1f} after")
    print(f"  edges within {order.WINDOW:,} nodes: {before.near:.1%} before, {after.near:.1%} after")
    made = None if ranges is None else len(ranges.edge_counts)
    for count, (name, _) in opened.partitions.items():
        if name != "edges" and count != made:
            print(
                f"  dropped the bounds of {counted(count, 'part')}, made by the method {name} for the former numbers"
            )
    return None


def _rewrite(
    opened: GraphFile, found: Arrangement, indptr: Numbers, ranges: Partition | None, label: str, memory: int
) -> None:
    """Replace the file by the same graph in another order. Its edge-balanced ranges are found again.

    Args:
        indptr: int64 [N + 1], offsets of the new rows.
        ranges: more ranges to write.
        label: name of the order.
        memory: bytes to use.
    """
    kept = {
        count: _counted(indptr, edge_balanced(indptr, count), "edges")
        for count, (name, _) in opened.partitions.items()
        if name == "edges"
    }
    if ranges is not None:
        kept[len(ranges.edge_counts)] = ranges
    imported = bool((found.ids == np.arange(len(found.ids))).all())
    window = memory // 8
    with phases() as report:
        build_graph(
            renumbered(opened, found.moved, None if imported else found.ids, memory=window),
            opened.path.resolve(),
            memory=memory - window,
            force=True,
            order="" if imported else label,
            identity="" if imported else opened.uuid,
            ranges=lambda _: [kept[count] for count in sorted(kept)],
            index=opened.index_dtype,
            progress=report,
        )


def _localities(opened: GraphFile, place: Numbers) -> tuple[order.Locality, order.Locality]:
    """Measure how near the ends of edges are, for the present numbers of rows and for ``place``, int64 [N]."""
    before, after = order.LocalityMeter(), order.LocalityMeter()
    for block in NumberedEdges(opened, None, data=False).blocks():
        before.add(block.destinations, block.sources)
        after.add(place[block.destinations], place[block.sources])
    return before.result(), after.result()


def _counted(indptr: Numbers, bounds: Numbers, method: str) -> Partition:
    return Partition(bounds, method, edge_counts(indptr, bounds).tolist())


def _print_bounds(path: Path, parts: int) -> None:
    with open_graph(path) as opened:
        bounds, (method, counts) = opened.bounds(parts), opened.partitions[parts]
    assert bounds is not None
    table = Table(title=f"{path}: {counted(parts, 'part')} by {method}", title_style="bold")
    for heading in ("rank", "first node", "nodes", "edges"):
        table.add_column(heading, justify="right")
    for rank in range(parts):
        low, high = int(bounds[rank]), int(bounds[rank + 1])
        table.add_row(str(rank), f"{low:,}", f"{high - low:,}", f"{counts[rank]:,}")
    console = Console()
    console.print(table)
    mean = sum(counts) / parts
    if mean:
        console.print(f"the largest part has {max(counts) / mean:.3f} times the mean of {mean:,.0f} edges")
