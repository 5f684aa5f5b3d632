"""Rows of embedding tables, divided by ranges over ranks: read by number, changed by sparse gradients."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ... import sizes
from ...errors import InputError, shown
from ...runtime import backends, cores, mpi
from ...runtime.backends.arguments import TieredRows
from ...runtime.exchange import arriving, sent
from ...runtime.streaming.files import in_memory, scratch_file, write
from ...runtime.tiers.place import NEAR, agreed, bytes_of
from ..tiered import DEVICES, TieredTensor, backend_for, ranks_of
from ..workspace import Workspace, accumulator, as_array, as_tensor, row_format
from .optimizers import SGD, Adagrad, RowOptimizer, RowWiseAdagrad

BLOCK = 1 << 19  # values that are drawn or copied at a time
RETURNED = 1 << 20  # bytes of arrays that malloc returns when freed: each step has arrays of other sizes
PART = 64 << 20  # bytes of rows in tiers that are saved at a time
PLACING = 30  # bytes of memory that a row takes while rows are placed by score: scores and their order
CACHED = 256 << 10  # bytes of rows that an optimiser changes at a time: a core's cache holds them in between

Score = Callable[[int, int], Any]  # returns the scores of rows first .. last - 1
Shapes = Iterable[tuple[int, int]]  # rows and columns of tables


class ShardedRows:
    """Rows [count, dim] of which rank p owns numbers bounds[p] .. bounds[p + 1] - 1. Collective to make and to close.

    optimizer: changes rows as soon as their gradients have arrived; None returns gradients to torch. near: bytes of a
    rank's memory for its own rows; others are in a scratch file in ``folder`` [default: the system's temporary one].
    [default: all rows are in memory] score: with near, score(first, last) returns the scores of these rows, of which
    the highest are near. [default: rows come as they lie] frozen: with near, rows are not trained and need no
    optimizer. comm: as for `TieredTensor`. Raises InputError, the same on all ranks, for arguments that do not fit or
    differ, and rows that memory cannot hold.

    Attributes:
        weight: parameter [own rows, dim], in memory that other ranks read where pointers reach it. With near: [0, dim],
            for autograd.
        kept: [own rows, columns], of the optimiser, in the accumulator's type; None with near.
        pointers: whether rows of all ranks are read in place. Else their numbers and then the rows are sent.
        tiers: with near, the own rows, each after the bits of what the optimiser keeps of it.
    """

    kept: Tensor | None = None
    tiers: TieredTensor | None = None
    _closed = False

    def __init__(
        self,
        count: int,
        dim: int,
        *,
        optimizer: RowOptimizer | None = None,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        near: int | str | None = None,
        folder: str | Path | None = None,
        score: Score | None = None,
        frozen: bool = False,
        comm: Any = None,
    ) -> None:
        self.comm = comm = ranks_of(comm)
        self.count, self.dim, self.optimizer = count, dim, optimizer
        self.device = str(device or "cpu").partition(":")[0]
        ranks, rank = (1, 0) if comm is None else (comm.size, comm.rank)
        with agreed(comm):
            self.dtype = checked_type(dtype)
            whole = all(isinstance(each, Integral) and each > 0 for each in (count, dim))
            if not whole or self.device not in DEVICES:
                raise InputError(
                    f"embedding rows are [{shown(count)}, {shown(dim)}] on {self.device}; expected at least one row "
                    f"and column, on {' or '.join(DEVICES)}"
                )
            if not isinstance(optimizer, RowOptimizer | None):
                kinds = ", ".join(f"mgg.nn.{each.__name__}" for each in (SGD, Adagrad, RowWiseAdagrad))
                raise InputError(f"optimizer is {shown(optimizer)}; expected {kinds}, or None")
            if near is None and (folder, score) != (None, None):
                raise InputError("folder and score are for embedding rows in tiers; pass near= with them")
            if near is not None and ((optimizer is None and not frozen) or self.device != "cpu"):
                raise InputError("embedding rows in tiers (near=) need an optimizer=, and the CPU")
        same_on_all(comm, "embedding rows", (count, dim, str(self.dtype), self.device, repr(optimizer), near))
        if near is None and self.device == "cpu":
            check_memory(comm, [(count, dim)], optimizer, self.dtype)
        self.bounds = np.arange(ranks + 1, dtype=np.int64) * count // ranks
        self.first, self.last = int(self.bounds[rank]), int(self.bounds[rank + 1])
        shared = comm is not None and mpi.node(comm).size == ranks and near is None
        self.backend = backend_for(comm, self.device, shared=shared)
        self.workspace = Workspace(self.backend, varying=True)
        columns = optimizer.columns(dim) if optimizer else 0
        if near is not None:
            self.pointers = False
            self._place(columns, near, folder, score)
            return
        format, symmetric = row_format(dim, self.dtype), self.backend.collectives.size > 1
        counts = np.diff(self.bounds) if symmetric else np.array([self.last - self.first])
        with backends.closed_on_error(self.backend.memory.close):
            if symmetric:
                self.backend.memory.reserve(int(counts.max()) * format.row_bytes)
            self._rows = self.backend.rows(counts, format, symmetric=symmetric)
        self.pointers = comm is None or (symmetric and self.backend.capabilities.reaches_peers)
        bounds = self.bounds if self.pointers else np.array([0, self.last - self.first])
        self._table = TieredRows.of_ranks(self._rows, bounds)
        self.weight = torch.nn.Parameter(as_tensor(self._rows.local))
        self._address = self.weight.data_ptr()
        wide, there = accumulator(self.dtype), self.weight.device
        self.kept = torch.zeros(self.last - self.first, columns, dtype=wide, device=there)

    def _place(self, columns: int, near: int | str, folder: str | Path | None, score: Score | None) -> None:
        """Place the own rows, initially zeros, in tiers. Collective. columns: of a row's optimiser state."""
        wide, alone = accumulator(self.dtype), None
        cores.return_freed_memory(RETURNED)
        self._folder = Path(folder or tempfile.gettempdir())
        if self.comm is not None:
            from mpi4py import MPI

            alone = MPI.COMM_SELF
        ratio, most = wide.itemsize // self.dtype.itemsize, int(np.diff(self.bounds).max())
        self._ahead = columns * ratio
        width = self._ahead + -(-self.dim // ratio) * ratio  # so that the optimiser's columns are aligned
        with backends.closed_on_error(self.backend.memory.close):
            with agreed(self.comm):
                here, left = 1 if self.comm is None else mpi.node(self.comm).size, cores.memory_available()
                if score is not None and (need := PLACING * here * most) > left:
                    raise InputError(
                        f"to place {self.count:,} rows of embeddings by score needs {sizes.shown(need)} on this node, "
                        f"and {sizes.shown(left)} are available; use more nodes, or fewer rows"
                    )
                whole = most * width * self.dtype.itemsize
                held = here * (whole if in_memory(self._folder) else min(whole, bytes_of(NEAR, near)))
                if here > 1 and held > left:  # each rank's tiers are its own
                    raise InputError(
                        f"embedding rows in tiers need {sizes.shown(held)} of this node, with near={near!r} on each of "
                        f"{here} ranks and scratch files in {self._folder}; {sizes.shown(left)} are available"
                    )
            with agreed(self.comm):
                given = None if score is None else score(self.first, self.last)
                how = {"near": near, "score": given, "folder": self._folder, "comm": alone}
                self.tiers = TieredTensor.zeros(self.last - self.first, width, self.dtype, **how)
        self.weight = torch.nn.Parameter(torch.empty(0, self.dim, dtype=self.dtype))
        self._address = self.weight.data_ptr()

    def publish(self) -> None:
        """Make the current values of the rows readable by all ranks, before `read`. Collective.

        Raises InputError if torch has moved the rows, as bags.half() does: they would not be the ones that are
        read.
        """
        if self._closed:
            raise InputError("embedding rows are closed, and can no longer be read")
        if self.weight.data_ptr() != self._address or self.weight.dtype != self.dtype:
            raise InputError(
                "embedding rows were moved to other memory; make them with dtype= and device= instead"
            )
        if self.pointers:
            self.backend.publish(self._rows)

    def read(self, ids: NDArray[np.int64]) -> Tensor:
        """Return the rows with these numbers, [n, dim].

        ids: int64 [n], numbers among the rows of all ranks. If pointers do not reach the rows of all ranks
        (``pointers`` is False), the call is collective and ``ids`` must be ascending.
        """
        out = self.workspace.rows(len(ids), self.dim, self.dtype)
        if self.pointers:
            self.backend.gather(self._table, ids, as_array(out))
            return out
        counts, asked = self._crossing(ids)
        mine = as_array(self._own(sent(self.comm, ids, counts, asked) - self.first).cpu().contiguous())
        self._count(counts, int(asked.sum()))
        bits = sent(self.comm, mine.view(np.uint8), asked, counts)  # MPI does not know every type of rows
        return out.copy_(as_tensor(bits.view(mine.dtype)))

    def _count(self, counts: NDArray[np.int64], gathered: int) -> None:
        """Count rows that were sent. counts: from each rank. gathered: here, for all ranks."""
        own = int(counts[0 if self.comm is None else self.comm.rank])
        counted = gathered if self.tiers is None else 0  # by the backend, as rows of its own
        format, others = row_format(self.dim, self.dtype), int(counts.sum()) - own
        self.backend.stream.meter.count(
            own - counted, others, format, int(np.count_nonzero(counts)) - (own > 0)
        )

    def _own(self, places: NDArray[np.int64]) -> Tensor:
        """Return own rows by their places, [n, dim]."""
        if self.tiers is not None:
            return self._split(self.tiers[places])[0]
        mine = self.workspace.rows(len(places), self.dim, self.dtype)
        self.backend.gather(self._table, places, as_array(mine))
        return mine

    def collect(self, ids: NDArray[np.int64], gradient: Tensor) -> tuple[NDArray[np.int64], Tensor]:
        """Return own rows with a gradient on any rank, ascending and counted from 0, and its sum over ranks.

        ids: int64 [n], ascending and distinct. gradient: [n, dim]. Ranks' gradients are added in the order of
        ranks. Collective.
        """
        gradient = gradient.to(accumulator(self.dtype))
        if self.comm is None:
            return ids, gradient
        counts, coming = self._crossing(ids)
        numbers = sent(self.comm, ids, counts, coming)
        values = sent(self.comm, gradient.contiguous().cpu().numpy(), counts, coming)
        found, place = np.unique(numbers, return_inverse=True)
        total = np.zeros((len(found), self.dim), values.dtype)
        ends = np.cumsum(coming)[:-1]
        for at, part in zip(np.split(place, ends), np.split(values, ends), strict=True):
            total[at] += part  # a rank names each row once
        return found - self.first, torch.from_numpy(total).to(self.weight.device)

    def change(self, own: NDArray[np.int64], gradient: Tensor) -> Tensor | None:
        """Have the optimiser change own rows; without one, return the gradient of `weight`, sparse and coalesced."""
        at = torch.from_numpy(own).to(gradient.device)
        if self.tiers is not None:
            if self.optimizer is None:
                raise InputError(
                    "embedding rows in tiers were made without an optimizer=, and cannot be trained"
                )
            rows = self.tiers[own]
            weight, kept = self._split(rows)
            self._step(torch.arange(len(own)), gradient, weight, kept)
            self.tiers.update(own, rows)
            return None
        if self.optimizer is None:
            shape, values = (self.last - self.first, self.dim), gradient.to(self.dtype)
            return torch.sparse_coo_tensor(at[None], values, shape, is_coalesced=True, check_invariants=False)
        assert self.kept is not None
        self._step(at, gradient, self.weight.detach(), self.kept)
        return None

    def _step(self, at: Tensor, gradient: Tensor, weight: Tensor, kept: Tensor) -> None:
        """Have the optimiser update rows ``at`` of weight [n, dim], and its state of them in ``kept``."""
        assert self.optimizer is not None
        wide = gradient.dtype
        step = max(64, CACHED // (self.dim * wide.itemsize)) if self.device == "cpu" else max(1, len(at))
        for here, slope in zip(at.split(step), gradient.split(step), strict=True):
            rows, held = weight.index_select(0, here).to(wide), kept.index_select(0, here)
            self.optimizer.step(rows, held, slope)
            weight.index_copy_(0, here, rows.to(weight.dtype))
            if held.shape[1]:
                kept.index_copy_(0, here, held)

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return views of rows of `tiers`: the rows [n, dim], and the optimiser's state of them."""
        return rows[:, self._ahead :][:, : self.dim], rows[:, : self._ahead].view(accumulator(self.dtype))

    def _crossing(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many rows ``ids``, ascending, each rank owns, and how many own ones each asks for."""
        counts = np.diff(np.searchsorted(ids, self.bounds))
        return counts, counts if self.comm is None else arriving(self.comm, counts)

    @torch.no_grad()
    def fill(
        self, of: Callable[[int, int], Tensor], first: int = 0, last: int | None = None, *, new: bool = False
    ) -> None:
        """Set rows first .. last - 1, each rank those that it owns. Collective.

        of: of(low, high) returns the new values of rows low .. high - 1. new: the optimiser has no state of the
        rows yet.
        """
        self.publish()  # no rank reads the former rows any more
        with agreed(self.comm):
            for low, high in self._blocks(max(self.first, first), min(self.last, self._end(last))):
                own, rows = slice(low - self.first, high - self.first), of(low, high)
                if self.tiers is None:
                    self.weight[own] = rows.to(self.weight)
                    continue
                every = (
                    torch.zeros(high - low, self.tiers.shape[1], dtype=self.dtype) if new else self.tiers[own]
                )
                self._split(every)[0].copy_(rows)
                self.tiers.update(np.arange(own.start, own.stop), every)

    def whole(self, first: int = 0, last: int | None = None) -> Tensor:
        """Return rows first .. last - 1 as a tensor on the CPU, whichever ranks own them. Collective.

        last: [default: the number of rows]
        """
        self.publish()
        return torch.cat([self.read(np.arange(*each)).cpu() for each in self._blocks(first, self._end(last))])

    def _end(self, last: int | None) -> int:
        return self.count if last is None else last

    def _blocks(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of blocks of rows first .. last - 1."""
        step = max(1, BLOCK // self.dim)
        return ((at, min(at + step, last)) for at in range(first, last, step))

    def parts(self, *, writes: bool = False) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
        """Yield (first, last, tensors by name) for parts of the own rows, with the optimiser's state of them.

        Without near there is one part, which is not copied; with near there are several, in copies. writes:
        write a copy back when the next part is asked for.
        """
        if self.tiers is None:
            assert self.kept is not None
            yield self.first, self.last, _named(self.weight.detach(), self.kept)
            return
        step = max(1, PART // (self.tiers.shape[1] * self.dtype.itemsize))
        for first in range(0, max(1, len(self.tiers)), step):
            numbers = np.arange(first, min(first + step, len(self.tiers)))
            every = self.tiers[numbers]
            yield self.first + first, self.first + first + len(numbers), _named(*self._split(every))
            if writes:
                self.tiers.update(numbers, every)

    def saved(self) -> dict[str, NDArray[Any]]:
        """Return copies of own rows and the optimiser's state by name; in scratch files if the rows are."""
        out, opened = dict[str, NDArray[Any]](), dict[str, Any]()
        with ExitStack() as files:
            for first, last, held in self.parts():
                for name, value in held.items():
                    given = as_array(value.to("cpu", copy=self.tiers is None).contiguous())
                    if first == self.first:
                        if last == self.last:
                            out[name] = given
                            continue
                        shape = self.last - self.first, given.shape[1]
                        number = scratch_file(self._folder, math.prod(shape) * given.itemsize)
                        file = files.enter_context(os.fdopen(number, "r+b", buffering=0))
                        opened[name], out[name] = file, np.memmap(file, given.dtype, "r+", shape=shape)
                    at = (first - self.first) * given[0].nbytes
                    write(opened[name].fileno(), given.view(np.uint8).reshape(-1), at)
        return out

    def close(self) -> None:
        """Free the rows, which may not be used afterwards. Collective."""
        self._closed = True
        if self.tiers is not None:
            self.tiers.close()
        self.backend.memory.close()


def checked_type(dtype: Any) -> torch.dtype:
    """Return the type of rows, by default torch's. Raises InputError for one that kernels do not sum."""
    found = torch.get_default_dtype() if dtype is None else dtype
    if found not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        raise InputError(f"dtype of embedding rows is {dtype!r:.60}; expected a floating-point type of torch")
    return found


def check_memory(
    comm: Any, tables: Shapes, optimizer: RowOptimizer | None, dtype: torch.dtype, *, copied: bool = False
) -> None:
    """Raise InputError, the same on all ranks, if a node's memory cannot hold its part of tables. Collective.

    tables: (rows, columns) of each. copied: count a copy of all of it, as a checkpoint takes one.
    """
    ranks, here = (1, 1) if comm is None else (comm.size, mpi.node(comm).size)
    need = here * (1 + copied) * rank_bytes(tables, optimizer, dtype, ranks)
    with agreed(comm):
        if need > (left := cores.memory_available()):
            copy = ", and their copy for checkpoints," if copied else ""
            raise InputError(
                f"rows of embeddings{copy} need {sizes.shown(need)} on this node, and {sizes.shown(left)} are available"
                "; use more nodes, fewer rows or narrower ones, or keep some on disk (near=, in jobs dlrm.memory)"
            )


def rank_bytes(tables: Shapes, optimizer: RowOptimizer | None, dtype: torch.dtype, ranks: int) -> int:
    """Return the bytes of a rank's part of tables (rows, columns), with the optimiser's state of it."""
    wide, need = accumulator(dtype).itemsize, 0
    for count, dim in tables:
        kept = optimizer.columns(dim) * wide if isinstance(optimizer, RowOptimizer) else 0
        need += -(-count // ranks) * (row_format(dim, dtype).row_bytes + kept)
    return need


def _named(weight: Tensor, kept: Tensor) -> dict[str, Tensor]:
    return {"weight": weight, **({"kept": kept} if kept.shape[1] else {})}


def dense_shape(given: Any) -> list[int] | str:
    """Return the shape of a dense tensor, or a word for anything else."""
    if not isinstance(given, Tensor):
        return "missing" if given is None else type(given).__name__
    return list(given.shape) if given.layout == torch.strided else f"{given.layout}"


def refuse_state(module: torch.nn.Module, rows: ShardedRows) -> None:
    """Have ``module.state_dict()`` raise InputError if it would lack the rows, since these are in tiers."""

    def refuse(*_: Any) -> None:
        raise InputError(
            "embedding rows in tiers are not in state_dict(); `gathered` returns the rows of all ranks"
        )

    if rows.tiers is not None:
        module.register_state_dict_pre_hook(refuse)


def same_on_all(comm: Any, what: str, mine: Any) -> None:
    """Raise InputError, the same on all ranks, if a value differs between them. Collective."""
    if comm is None:
        return
    for rank, theirs in enumerate(every := comm.allgather(mine)):
        if theirs != every[0]:
            raise InputError(
                f"{what} of rank {rank} are {theirs}, and {every[0]} on rank 0; pass the same on all"
            )


def drawn(comm: Any, dim: int, *, uniform: bool) -> Callable[..., Tensor]:
    """Return a function that draws rows by number, the same for any division over ranks. Collective.

    The seed is a draw of torch's generator on rank 0. uniform: in +-limit, else normal with variance 1.
    """
    seed = int(torch.randint(1 << 62, ()))
    seed = seed if comm is None else comm.bcast(seed)
    each = dim if uniform else 2 * dim  # Box and Muller take two

    def of(first: int, last: int, limit: float = 1.0) -> Tensor:
        steps, skipped = divmod(first * each, 4)  # Philox4x64 draws four numbers a step
        generator = np.random.Generator(np.random.Philox(seed).advance(steps))
        values = generator.random(skipped + (last - first) * each)[skipped:].reshape(last - first, each)
        if uniform:
            return torch.from_numpy((2 * values - 1) * limit)
        radius = np.sqrt(-2 * np.log1p(-values[:, :dim]))
        return torch.from_numpy(radius * np.cos(2 * math.pi * values[:, dim:]))

    return of
