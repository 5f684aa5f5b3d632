"""Plans that are kept next to their graph: a rank's part of a matrix and its halo in rounds, for the next run.

They are files in the folder ``GRAPH.plans``, one for each rank and kind of matrix. A file belongs to a graph's edges in
their present order, whichever graph file holds them: to the graph's uuid, the digest of its edges, and the row ranges.
A file that is damaged, of another version or of another user is ignored; a folder that cannot be written keeps nothing.

A file is: "mgg-plan" and a line feed; the length of the description in bytes, uint64; the description, JSON: key, and
name, type and shape of each array; the arrays, each from a multiple of 64 bytes on; XXH3-128 of all bytes before.
Kernels trust plans, so only files are read that belong to this user and that no other user may write.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from ...data.atomic_write import SLACK, replacement
from ...data.digest import byte_slices
from ...data.store import GraphFile
from ...errors import InputError
from ...plan.layout import CHUNK, SEGMENT
from ...plan.workload import HaloLists, Plan, SplitEdges
from .matrix import Matrix, Unplanned

VERSION = 2  # of the content; files of other versions are ignored
LEAST_EDGES = 1 << 22  # edges of a rank, on average, for "auto": fewer are planned sooner than they are read
FREE_SHARE = 0.25  # of the device's free bytes, the most that a file may take

MAGIC = b"mgg-plan\n"
ALIGNED = 64
TYPES = {np.dtype(kind).str: np.dtype(kind) for kind in ("<i4", "<i8", "<f4", "<f8")}
TYPES |= {"chunk": CHUNK, "segment": SEGMENT}
DIGEST_BYTES = 16
TENSORS = ("scale", "forward_weight", "backward_weight", "inverse_degree")

Arrays = dict[str, NDArray[Any]]
Pieces = list[NDArray[Any]]  # of one array, in order; an empty list is no array
Planned = tuple[Plan, Tensor | None]  # a plan and the weights of its edges


def folder_of(path: Path) -> Path:
    """Return the folder of a graph file's plans."""
    return path.with_name(f"{path.name}.plans")


class PlanCache:
    """Finds and keeps the plans of one kind of matrix of a graph, for one rank of a job.

    mode: "auto", "always" or "never". kind: of the matrix. dtype: of its weights. notes: messages for the user.
    """

    def __init__(self, mode: str, kind: str, dtype: torch.dtype) -> None:
        self._mode, self._kind, self._dtype = mode, kind, dtype
        self._key: dict[str, Any] = {}  # empty unless plans are looked for and kept
        self._folder, self._ranks = Path(), 0
        self.notes: list[str] = []

    def find(self, comm: Any, file: GraphFile, bounds: NDArray[np.int64]) -> Unplanned | None:
        """Return this rank's matrix if every rank has a file of its own, else None. Collective."""
        if self._mode == "never" or (self._mode == "auto" and file.edges < LEAST_EDGES * comm.size):
            return None
        self._folder, self._ranks = folder_of(file.path.resolve()), comm.size
        self._key = {
            "version": VERSION,
            "uuid": file.uuid,
            "edges": file.edge_digest(),
            "bounds": xxhash.xxh3_128_hexdigest(np.ascontiguousarray(bounds, np.int64).tobytes()),
            "directed": file.directed,
            "rank": comm.rank,
            "kind": self._kind,
            "dtype": str(self._dtype),
        }
        found = self._read(comm, "matrix", {})
        if found is None:
            return None
        forward = _edges(found, "forward", comm.rank)
        backward = _edges(found, "backward", comm.rank) if file.directed else forward
        tensors: dict[str, Any] = {name: _tensor(found, name) for name in TENSORS}
        return Matrix(forward, backward, kind=self._kind, **tensors)

    def keep(self, matrix: Unplanned) -> None:
        """Keep this rank's matrix, unless data of edges will be brought into its order."""
        if not self._key or matrix.order is not None:
            return
        kept = _edge_pieces(matrix.forward, "forward")
        if matrix.backward is not matrix.forward:
            kept |= _edge_pieces(matrix.backward, "backward")
        self._write("matrix", {}, kept | {name: _pieces(getattr(matrix, name)) for name in TENSORS})

    def halo(
        self,
        comm: Any,
        edges: SplitEdges,
        direction: str,
        rounds: int | None,
        make: Callable[[], Planned],
    ) -> Planned:
        """Return the plan of a halo in rounds: the one that is kept, else the result of ``make``. Collective.

        direction: "forward" or "backward". rounds: requested number of rounds.
        """
        if not self._key:
            return make()
        options = {"direction": direction, "rounds": rounds}
        found = self._read(comm, "halo", options)
        if found is not None:
            return _halo(found, edges), _tensor(found, "weight")
        plan, weight = make()
        lists = plan.lists
        assert lists is not None  # a halo has them
        kept = _array_pieces(plan, ("chunks", "segments", "indices")) | _array_pieces(lists)
        kept |= {"sizes": [np.array([lists.capacity, lists.most_sent])], "weight": _pieces(weight)}
        self._write("halo", options, kept)
        return plan, weight

    def _read(self, comm: Any, what: str, options: dict[str, Any]) -> Arrays | None:
        """Return the arrays of this rank's file, or None unless every rank has its own. Collective."""
        found, wrong = read(self._path(what, options), self._key | options)
        mine = found is not None, wrong
        every = comm.allgather(mine) if comm.size > 1 else [mine]
        self.notes += [each for _, each in every if each][:1]
        return found if all(there for there, _ in every) else None

    def _write(self, what: str, options: dict[str, Any], arrays: dict[str, Pieces]) -> None:
        """Write this rank's file, and remove those for other edges; add a note if that is impossible."""
        path, key = self._path(what, options), self._key | options
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._remove_others(path)
            free = os.statvfs(self._folder)
            size = sum(map(len, _bytes(key, arrays))) + DIGEST_BYTES
            if size + SLACK > FREE_SHARE * free.f_bavail * free.f_frsize:
                raise InputError(f"no room in {self._folder}")
            write(path, key, arrays, size)
        except (OSError, InputError) as error:
            self.notes.append(f"plans are not kept for the next run: {error}")

    def _path(self, what: str, options: dict[str, Any]) -> Path:
        """Return the path of a file, whose name begins with a digest of the graph and its edges."""
        rest = {name: each for name, each in self._key.items() if name not in ("uuid", "edges")} | options
        plan = xxhash.xxh3_64_hexdigest(repr(sorted(rest.items())).encode())
        edges = xxhash.xxh3_64_hexdigest(f"{self._key['uuid']} {self._key['edges']}".encode())
        return self._folder / f"{edges}-{what}-{self._kind}-{self._key['rank']}of{self._ranks}-{plan}.plan"

    def _remove_others(self, path: Path) -> None:
        """Remove files that this rank has kept of the same kind for edges that the graph has no more."""
        edges, what, kind, rank, _ = path.name.split("-")
        for other in self._folder.glob(f"*-{what}-{kind}-{rank}-*.plan"):
            if not other.name.startswith(f"{edges}-"):
                with suppress(OSError):
                    other.unlink()


# ---- the arrays of a plan


def _pieces(tensor: Tensor | None) -> Pieces:
    return [] if tensor is None else [tensor.cpu().numpy()]


def _tensor(found: Arrays, name: str) -> Tensor | None:
    return torch.from_numpy(found[name]) if name in found else None


def _array_pieces(plan: Plan | HaloLists | SplitEdges, names: tuple[str, ...] = ()) -> dict[str, Pieces]:
    """Return a dataclass's arrays by the names of its fields. names: these fields. [default: all arrays]"""
    every = {each.name: getattr(plan, each.name) for each in fields(plan)}
    return {
        name: [each]
        for name, each in every.items()
        if isinstance(each, np.ndarray) and name in (names or every)
    }


def _edge_pieces(edges: SplitEdges, direction: str) -> dict[str, Pieces]:
    destinations, counts = ([run[i] for run in edges.runs] for i in (0, 1))
    pieces = _array_pieces(edges) | {"destinations": destinations, "counts": counts}
    pieces |= {"lengths": [np.array([len(each) for each in counts], dtype=np.int64)]}
    pieces |= {"size": [np.array([edges.destinations])]}
    return {f"{direction}/{name}": each for name, each in pieces.items()}


def _edges(found: Arrays, direction: str, rank: int) -> SplitEdges:
    held = {name.partition("/")[2]: each for name, each in found.items() if name.startswith(f"{direction}/")}
    cuts, size = np.cumsum(held.pop("lengths"))[:-1], int(held.pop("size")[0])
    runs = [np.split(held.pop(name), cuts) for name in ("destinations", "counts")]
    return SplitEdges(rank=rank, destinations=size, runs=list(zip(*runs, strict=True)), edge=None, **held)


def _halo(found: Arrays, edges: SplitEdges) -> Plan:
    capacity, most_sent = found["sizes"].tolist()
    names = ("receive_counts", "send_rows", "send_counts", "send_places")
    lists = HaloLists(**{name: found[name] for name in names}, capacity=capacity, most_sent=most_sent)
    return Plan(
        rank=edges.rank,
        destinations=edges.destinations,
        chunks=found["chunks"],
        segments=found["segments"],
        indices=found["indices"],
        edge=None,
        halo=edges.halo,
        halo_bounds=edges.halo_bounds,
        transfer="halo",
        lists=lists,
    )


# ---- files


def read(path: Path, key: Mapping[str, Any]) -> tuple[Arrays | None, str]:
    """Return (arrays, "") of a file that was written with ``key``, or (None, a message if the file is damaged)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None, ""
    try:
        held = os.fstat(descriptor)
        if not stat.S_ISREG(held.st_mode) or held.st_uid != os.geteuid() or held.st_mode & 0o022:
            return None, ""
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return _arrays(file, held.st_size, key), ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        return None, f"{path}: ignored, since it is damaged ({reason}); the plan is made anew"
    finally:
        os.close(descriptor)


def write(path: Path, key: Mapping[str, Any], arrays: Mapping[str, Pieces], size: int) -> None:
    """Write a file of ``size`` bytes, whole or not at all. Raises what `replacement` does, and OSError."""
    hasher = xxhash.xxh3_128()
    with replacement(path, force=True, size=size, mode=0o600) as draft, draft.open("wb") as file:
        for piece in _bytes(key, arrays):
            hasher.update(piece)
            file.write(piece)
        file.write(hasher.digest())


def _padding(size: int) -> int:
    return -size % ALIGNED


def _bytes(key: Mapping[str, Any], arrays: Mapping[str, Pieces]) -> Iterator[memoryview | bytes]:
    """Yield all bytes of a file but its digest."""
    names = {kind: name for name, kind in TYPES.items()}
    described = {
        name: [names[each[0].dtype], [sum(len(piece) for piece in each), *each[0].shape[1:]]]
        for name, each in arrays.items()
        if each
    }
    text = json.dumps({"key": dict(key), "arrays": described}).encode()
    head = MAGIC + len(text).to_bytes(8, "little") + text
    yield head + bytes(_padding(len(head)))
    for each in arrays.values():
        for piece in each:
            for part in byte_slices(piece):
                yield part.data
        yield bytes(_padding(sum(piece.nbytes for piece in each)))


def _arrays(file: Any, size: int, key: Mapping[str, Any]) -> Arrays:
    """Return the arrays of an unbuffered file of ``size`` bytes. Raises ValueError if its digest or key differs.

    Each array has memory of its own, so that those go which are copied to a device.
    """
    hasher, left = xxhash.xxh3_128(), size - DIGEST_BYTES

    def take(count: int) -> NDArray[np.uint8]:
        nonlocal left
        if not 0 <= count <= left:
            raise ValueError("another size")
        data = np.fromfile(file, np.uint8, count)
        hasher.update(data.data)
        left -= count
        return data

    begin = len(MAGIC) + 8
    length = int.from_bytes(take(begin)[len(MAGIC) :].tobytes(), "little")
    described = json.loads(take(length).tobytes())
    if described["key"] != dict(key):
        raise ValueError("another key")
    end = begin + length
    found: Arrays = {}
    for name, (kind, shape) in described["arrays"].items():
        nbytes = math.prod(shape) * np.dtype(TYPES[kind]).itemsize
        take(_padding(end))
        found[name] = take(nbytes).view(TYPES[kind]).reshape(shape)
        end += _padding(end) + nbytes
    take(left)
    if hasher.digest() != np.fromfile(file, np.uint8, DIGEST_BYTES).tobytes():
        raise ValueError("another digest")
    return found
