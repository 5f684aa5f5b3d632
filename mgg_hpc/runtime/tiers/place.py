"""Placement of rows in tiers by descending score (Min, dissertation, section 4.2): slots, memory, copies of rows."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import sizes
from ...errors import InputError
from ...plan import scores
from ...plan.layout import RowFormat
from ...plan.order import inverse
from .. import backends, cores, mpi
from ..backends.arguments import Options, Rows, Tier, TieredRows
from ..backends.base import Backend
from ..backends.host.components import aligned_zeros, padded
from ..backends.host.kernels import SerialBackend
from ..backends.simulated import World
from ..streaming.files import in_memory
from .files import FileRows, ScratchRows

NEAR, PEERS, HOST, FILE, ARRAY = "near", "peers", "host", "file", "array"
AUTO = "auto"  # size of PEERS: the bytes of NEAR are divided between both
SMALL_SLOTS = 1 << 31  # from here on a slot takes 8 bytes instead of 4
BLOCK = 32 << 20  # bytes that are copied at a time
PROBES, PROBED = 5, 512  # calls, and rows of each, that measure the cost of a row


@dataclass(frozen=True)
class Zeros:
    """Rows [count, dim] of zeros, which are not stored anywhere yet."""

    count: int
    dim: int
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.count


Source = FileRows | Zeros | NDArray[Any]
Slots = NDArray[np.integer]


def format_of(source: Source) -> RowFormat:
    """Return the format of a source's rows in memory."""
    return RowFormat(source.dtype, source.shape[1] if isinstance(source, np.ndarray) else source.dim)


def bytes_of(name: str, size: int | str) -> int:
    """Return a size in bytes. size: of tier ``name``, a number or as "4G". Raises InputError for another one."""
    try:
        nbytes = sizes.parse(size) if isinstance(size, str) else operator.index(size)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}: {error}") from error
    if nbytes < 0 or isinstance(size, bool):
        raise InputError(f"{name} is {size}; expected a number of bytes, or a size as 4G")
    return nbytes


def rows_of(given: Mapping[str, int | str], format: RowFormat) -> dict[str, int]:
    """Return how many rows fit into the bytes of each tier, by name; -1 for AUTO.

    given: bytes, or sizes as "4G". Raises InputError for another size.
    """
    return {
        name: -1 if name == PEERS and size == AUTO else bytes_of(name, size) // max(1, format.row_bytes)
        for name, size in given.items()
    }


def replicated(
    reads: NDArray[np.floating], room: int, ranks: int, host: int, costs: Mapping[str, float]
) -> int:
    """Return how many of the ``room`` rows of each rank to replicate; the others are interleaved over the ranks.

    Each replicated row is read from nearer memory, and leaves room for ``ranks`` fewer distinct rows. reads: [N],
    expected reads of rows, descending. host: rows of the tier below. costs: seconds to read a row of each tier.
    """
    room = min(room, len(reads))
    until = np.concatenate([[0.0], np.cumsum(reads, dtype=np.float64)])
    near = np.arange(room + 1)
    far = np.minimum(near + ranks * (room - near), len(reads))
    below = np.minimum(far + host, len(reads))
    cost = until[near] * costs[NEAR] + (until[far] - until[near]) * costs[PEERS]
    cost += (until[below] - until[far]) * costs[HOST] + (until[-1] - until[below]) * costs[FILE]
    return int(np.argmin(cost))


class Placed:
    """A table of a source's rows, the first of which are copied into tiers. Collective to make and to close.

    backend: reads the table. comm: of all ranks, or None where this process is alone. source: array [N, dim], or rows
    of a file. room: rows that NEAR and PEERS may hold on each rank, and HOST on each node (`rows_of`). score: [N], by
    which rows are placed. [default: as they lie] reads: [N], expected reads of rows, by which AUTO divides.
    [default: the score] places: returns the place of each row in the source, [N]; called once a node.
    [default: its number] reserve: called with a number of bytes before as much symmetric memory is allocated.
    [default: the backend's] scratch: folder of a file into which the rows that no tier has are copied, so that all rows
    of the table may be written; NEAR holds none then where there are several ranks, which are of one node. [default:
    these rows stay in the source] Raises InputError, the same on all ranks, for tiers that do not fit in memory, and
    rows that cannot be read.

    Attributes: rows: number of slots of each tier, by name. table: the rows, for ``backend`` to read.
    pool_bytes: bytes of this rank's private memory that NEAR and PEERS take.
    """

    def __init__(
        self,
        backend: Backend,
        comm: Any,
        source: Source,
        room: Mapping[str, int],
        *,
        score: NDArray[Any] | None = None,
        reads: NDArray[Any] | None = None,
        places: Callable[[], Slots] | None = None,
        reserve: Callable[[int], None] | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._backend, self._comm = backend, comm if comm is not None and comm.size > 1 else None
        self._node = None if self._comm is None else mpi.node(self._comm)
        self._rank, self._ranks = backend.collectives.rank, backend.collectives.size
        self._leads = self._node is None or self._node.rank == 0  # computes what its node holds once
        self._format, self._zeros, self._scratch = format_of(source), isinstance(source, Zeros), scratch
        # Rows are copied by the host, whatever reads the table.
        self._host = SerialBackend(0, World(1), Options(backend.options.geometry, backend.options.threads))
        file = source if isinstance(source, FileRows) else None
        array = source if isinstance(source, np.ndarray) else None
        held = [] if array is None else [Tier.of_array(ARRAY, array)]
        count, scored = len(source), score is not None
        self._whole = TieredRows(count, self._format, held, file)
        self._ends: list[Callable[[], object]] = []
        with backends.closed_on_error(self.close):
            slots = lies = None if places is None else self._once(count, slot_type(count), places)
            order = np.zeros(0, np.int64) if score is None or not self._leads else scores.order(score)

            def ranked(first: int, last: int) -> Slots:
                """Return places in the source, of rows by descending score."""
                rows = order[first:last] if scored else np.arange(first, last)
                return rows if lies is None or not scored else lies[rows]

            reads = score if reads is None else reads
            by_score = reads
            if reads is not None and room[PEERS] < 0 and scored and self._leads:  # to divide NEAR's bytes
                by_score = reads[order]
            pool, self.rows = self._divided(room, count, by_score, reserve, mapped=scored)
            self.pool_bytes = 0 if pool.symmetric else len(pool.buffer)
            kept, before = sum(self.rows.values()), len(self._ends)
            copied = self._once(kept, np.int64, lambda: ranked(0, kept))
            after = len(self._ends)
            tiers, mapped = self._filled(pool, copied), scored and kept > 0
            for end in self._ends[before:after]:  # of ``copied``
                end()
            del self._ends[before:after]
            if scratch is not None:
                file = self._scratched(
                    scratch, count - kept, lambda low, high: ranked(kept + low, kept + high)
                )
                if scored:
                    slots = self._once(count, slot_type(count), lambda: inverse(order))
            elif array is not None:
                rest = array if mapped else array[kept:]
                self._lock(rest)
                tiers.append(Tier.of_array(ARRAY, rest, self._rank))
            if mapped and scratch is None:
                slots = self._once(count, slot_type(kept + count), lambda: placed(order, kept, lies))
            first = 0 if mapped or scratch is not None else kept
            self.table = TieredRows(count, self._format, tiers, file, slots=slots, first=first)

    def _shared(self, nbytes: int) -> tuple[NDArray[np.uint8], Callable[[], None]]:
        """Return memory shared by a node's ranks, and a function to make writes readable. Both collective."""
        if self._node is None:
            return aligned_zeros(nbytes), lambda: None
        with agreed(self._comm):
            window = mpi.SharedWindow(self._node, nbytes, one=True)
            self._ends.append(window.free)

        def settle() -> None:
            window.sync()
            window.node.Barrier()
            window.sync()

        return window.buffer(0), settle

    def _once(self, count: int, dtype: Any, make: Callable[[], Slots]) -> Slots:
        """Return an array [count] that the first rank of each node makes, and all of its ranks read. Collective."""
        memory, settle = self._shared(count * np.dtype(dtype).itemsize)
        out: Slots = memory.view(dtype)
        with agreed(self._comm):
            if self._leads:
                out[:] = make()
        settle()
        return out

    def _divided(
        self,
        room: Mapping[str, int],
        count: int,
        reads: NDArray[Any] | None,
        reserve: Callable[[int], None] | None,
        *,
        mapped: bool,
    ) -> tuple[Rows, dict[str, int]]:
        """Return this rank's rows for NEAR and PEERS, and the number of slots of each tier. Collective.

        reads: expected reads of rows by descending score, on the first rank. mapped: the table needs a slot for
        each row.
        """
        ranks, auto = self._ranks, room[PEERS] < 0
        near = min(room[NEAR], count)
        peers = 0 if auto else min(ranks * room[PEERS], count - near)
        host = min(room[HOST], count - near - peers)
        mine = near + -(-peers // ranks)
        with agreed(self._comm):
            rows = {NEAR: near, PEERS: -(-peers // ranks), HOST: host}
            self._check_room(rows, count if mapped else 0, count - near - peers - host)
        symmetric = (peers > 0 or auto) and ranks > 1
        if symmetric:
            (reserve or self._backend.memory.reserve)(mine * self._format.row_bytes)
        counts = np.where(symmetric | (np.arange(ranks) == self._rank), mine, 0).astype(np.int64)
        pool = self._backend.rows(counts, self._format, symmetric=symmetric)
        if auto and self._comm is not None:
            costs = self._costs(pool, self._comm)
            if self._rank == 0:
                assert reads is not None  # of a caller that has asked for AUTO
                near = replicated(reads, mine, ranks, room[HOST], costs)
            near = self._comm.bcast(near)
            peers = min(ranks * (mine - near), count - near)
            host = min(room[HOST], count - near - peers)
        return pool, {NEAR: near, PEERS: peers, HOST: host}

    def _check_room(self, rows: dict[str, int], mapped: int, rest: int) -> None:
        """Raise InputError where tiers need more memory than there is. rows: of each rank, and of a node for HOST.

        mapped: rows that have slots. rest: rows of no tier, which a scratch file on a tmpfs keeps in memory.
        """
        nbytes = {name: count * self._format.row_bytes for name, count in rows.items()}
        mine = nbytes[NEAR] + nbytes[PEERS]
        on_host = nbytes[HOST] + mapped * np.dtype(slot_type(mapped)).itemsize
        free, ranks = self._backend.memory.free(), 1 if self._node is None else self._node.size
        if free is None:
            on_host += ranks * mine
        advice = ""
        if self._scratch is not None and rest and in_memory(self._scratch):
            name = f"the scratch file in {self._scratch}, which is memory (tmpfs),"
            nbytes[name] = rest * self._format.dim * self._format.dtype.itemsize
            on_host, advice = on_host + nbytes[name], "; choose a folder on a disk"
        shown = ", ".join(f"{name} {sizes.shown(size)}" for name, size in nbytes.items() if size)
        each = f" ({NEAR} and {PEERS} on each of {ranks} ranks)" if ranks > 1 and mine else ""
        if free is not None and mine > free:
            raise InputError(
                f"tiers: {shown}{each}; the GPU of rank {self._rank} has {sizes.shown(free)} free"
            )
        if on_host > (left := cores.memory_available()):
            raise InputError(
                f"tiers need {sizes.shown(on_host)} of this node: {shown}{each}; {sizes.shown(left)} are available"
                + advice
            )

    def _costs(self, pool: Rows, comm: Any) -> dict[str, float]:
        """Measure the seconds to read a row of each tier, on the slowest rank. Collective."""
        rng, format, rank = np.random.default_rng(self._rank), self._format, self._rank
        rows = int(pool.counts[self._rank])
        probe = padded(min(max(rows, 1), 1 << 16), format)
        probe[:] = 0
        out = self._backend.memory.padded(PROBED, format)

        def seconds(table: TieredRows) -> float:
            taken = []
            for _ in range(PROBES):
                ids = rng.integers(0, max(1, table.rows), PROBED if table.rows else 0)
                began = time.perf_counter()
                self._backend.gather(table, ids, out[: len(ids)])
                self._backend.stream.finish()
                taken.append((time.perf_counter() - began) / PROBED)
            return float(np.median(taken))

        def of_rank(rank: int) -> TieredRows:
            return TieredRows(rows, format, [_tier(NEAR, pool, 0, rows, np.array([rank]))])

        unlock = self._backend.memory.lock(probe.ctypes.data, len(probe) * format.row_bytes)
        tables = [of_rank(rank), of_rank((rank + 1) % self._ranks)]
        tables.append(TieredRows(len(probe), format, [Tier.of_array(HOST, probe, rank)]))
        if self._whole.file is not None:
            tables.append(self._whole)
        try:
            with agreed(comm):
                found = [seconds(each) for each in tables]
        finally:
            unlock()
        found += [found[-1]] * (4 - len(found))
        slowest = np.max(comm.allgather(found), axis=0)
        return dict(zip((NEAR, PEERS, HOST, FILE), slowest.tolist(), strict=True))

    def _filled(self, pool: Rows, places: Slots) -> list[Tier]:
        """Copy rows of the source into the tiers, and return these. Collective.

        pool: this rank's rows for NEAR and PEERS. places: [kept], place in the source of each row that is
        copied.
        """
        near, peers, host = (self.rows[name] for name in (NEAR, PEERS, HOST))
        rank, ranks = (0, 1) if self._node is None else (self._node.rank, self._node.size)
        format = self._format
        memory, settle = self._shared(host * format.row_bytes)
        on_host = memory.view(format.dtype).reshape(host, format.stride)[:, : format.dim]
        of_peers = places[near : near + peers][self._rank :: self._ranks]
        with agreed(self._comm):
            self._copy(places[:near], pool.local[:near])
            self._copy(of_peers, pool.local[near : near + len(of_peers)])
            # Each rank of a node copies a part of what they share.
            part = slice(host * rank // ranks, host * (rank + 1) // ranks)
            self._copy(places[near + peers :][part], on_host[part])
        if pool.symmetric:
            self._backend.publish(pool)
        settle()
        self._lock(on_host)
        every, own = np.arange(self._ranks), np.array([self._rank])
        tiers = [
            _tier(NEAR, pool, 0, near, own),
            _tier(PEERS, pool, near, peers, every),
            Tier.of_array(HOST, on_host, self._rank),
        ]
        return [each for each in tiers if each.slots]

    def _scratched(self, folder: Path, count: int, places: Callable[[int, int], Slots]) -> ScratchRows | None:
        """Return a scratch file of the rows at places(0, count) in the source, if there are any. Collective."""
        if not count:
            return None
        file = ScratchRows(self._node, folder, count, self._format.dim, self._format.dtype)
        self._ends.append(file.close)
        with agreed(self._comm):
            for first, last in self._steps(count if self._leads and not self._zeros else 0):
                file.write(first, self._read(places(first, last)))
        return file

    def _steps(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of blocks of rows that are copied at a time."""
        step = max(1, BLOCK // max(1, self._format.row_bytes))
        return ((first, min(first + step, count)) for first in range(0, count, step))

    def _read(self, places: Slots, out: Any = None) -> NDArray[Any]:
        """Return rows of the source. out: array to fill. [default: a new one]"""
        out = np.empty((len(places), self._format.dim), self._format.dtype) if out is None else out
        self._host.gather(self._whole, np.ascontiguousarray(places, np.int64), out)
        return out

    def _copy(self, places: Slots, out: Any) -> None:
        """Copy rows of the source into ``out``: new memory, all zeros, of the host or a device."""
        for first, last in self._steps(0 if self._zeros else len(places)):
            to = out[first:last]
            if isinstance(to, np.ndarray):
                self._read(places[first:last], to)
                continue
            import torch

            rows = self._read(places[first:last])
            to.view(torch.uint8).copy_(torch.from_numpy(rows.view(np.uint8)))

    def _lock(self, rows: NDArray[Any]) -> None:
        """Lock rows in the host's memory, so that a device can read them, until `close`."""
        if rows.size:
            nbytes = (len(rows) - 1) * rows.strides[0] + rows.shape[1] * rows.itemsize
            self._ends.append(self._backend.memory.lock(rows.ctypes.data, nbytes))

    def close(self) -> None:
        """Free the memory of the tiers, but for symmetric rows, which go with the backend. Collective."""
        while self._ends:
            self._ends.pop()()


def agreed(comm: Any) -> AbstractContextManager[None]:
    """Return `mpi.agree`, or a context that does nothing where a process is alone."""
    return nullcontext() if comm is None else mpi.agree(comm)


def _tier(name: str, pool: Rows, first: int, slots: int, ranks: NDArray[np.int64]) -> Tier:
    """Return a tier of slots that lie on these ranks in turn, from each one's row ``first`` on."""
    row_bytes = pool.format.row_bytes
    offset, start = np.uint64(first * row_bytes), pool.addresses[ranks]
    mine = int(pool.addresses[pool.rank] + offset) if pool.symmetric else 0
    return Tier(name, slots, np.where(start == 0, start, start + offset), ranks, row_bytes, mine, pool)


def placed(order: NDArray[np.int64], kept: int, places: Slots | None = None) -> Slots:
    """Return slots [N]: the first ``kept`` rows of ``order`` have 0 .. kept - 1, and each other row kept + its place.

    order: int64 [N], rows by descending score. places: [N], of the rows in the source. [default: their numbers]
    """
    kind = slot_type(kept + len(order))
    slots: Slots = np.arange(len(order), dtype=kind) if places is None else places.astype(kind)
    slots += kind(kept)
    slots[order[:kept]] = np.arange(kept)
    return slots


def slot_type(slots: int) -> type[np.integer]:
    """Return the integer type, int32 or int64, that can hold the numbers of ``slots`` slots."""
    return np.int64 if slots >= SMALL_SLOTS else np.int32
