"""Plans that are kept beside their graph: a rank's part of a matrix, and its halo in rounds, ready to be read.

They lie in the folder ``GRAPH.plans``, a file (`plan_file`) for each rank and kind of matrix, and belong to a graph's
edges in their present order, whichever file has them: to its uuid, the digest of its edges, and the row ranges. A file
that is damaged, of another version or of another user is ignored, and a folder that cannot be written keeps nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from ...data.atomic_write import SLACK
from ...data.store import GraphFile
from ...errors import InputError
from ...plan.workload import HaloLists, Plan, SplitEdges
from . import plan_file
from .matrix import Matrix, Unplanned
from .plan_file import Arrays, Pieces

VERSION = 1  # of what is kept; what was kept by another one is made anew
LEAST_EDGES = 1 << 22  # of a rank, on average, with "auto": fewer are planned sooner than they are read
FREE_SHARE = 0.25  # of the device's free bytes, which what is kept does not exceed

Planned = tuple[Plan, Tensor | None]  # and its weights


def folder_of(path: Path) -> Path:
    """Return the folder of a graph file's plans."""
    return path.with_name(f"{path.name}.plans")


class PlanCache:
    """The plans of one kind of matrix of a graph, as one rank of a job keeps and finds them.

    asked: "auto", "always" or "never". kind: of the matrix. dtype: of its weights. notes: what to tell the user.
    """

    def __init__(self, asked: str, kind: str, dtype: torch.dtype) -> None:
        self._asked, self._kind, self._dtype = asked, kind, dtype
        self._key: dict[str, Any] = {}
        self._folder, self._ranks = Path(), 0
        self.notes: list[str] = []

    @property
    def active(self) -> bool:
        """Whether plans are looked for and kept."""
        return bool(self._key)

    def find(self, comm: Any, file: GraphFile, bounds: NDArray[np.int64]) -> Unplanned | None:
        """Return this rank's matrix, if all ranks have theirs. Collective."""
        if self._asked == "never" or (self._asked == "auto" and file.edges < LEAST_EDGES * comm.size):
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
        forward = _edges_of(found, "forward", comm.rank)
        backward = _edges_of(found, "backward", comm.rank) if file.directed else forward
        return Matrix(
            forward=forward,
            backward=backward,
            scale=_tensor(found, "scale"),
            forward_weight=_tensor(found, "forward_weight"),
            backward_weight=_tensor(found, "backward_weight"),
            kind=self._kind,
            inverse_degree=_tensor(found, "inverse_degree"),
        )

    def keep(self, matrix: Unplanned) -> None:
        """Keep this rank's matrix, unless its edges have an order of their own."""
        if not self.active or matrix.order is not None:
            return
        kept = _pieces_of(matrix.forward, "forward")
        if matrix.backward is not matrix.forward:
            kept |= _pieces_of(matrix.backward, "backward")
        tensors = ("scale", "forward_weight", "backward_weight", "inverse_degree")
        kept |= {name: _array(getattr(matrix, name)) for name in tensors}
        self._write("matrix", {}, kept)

    def halo(
        self,
        comm: Any,
        edges: SplitEdges,
        direction: str,
        rounds: int | None,
        make: Callable[[], Planned],
    ) -> Planned:
        """Return the plan of these edges with a halo in rounds, kept or else by ``make``. Collective.

        direction: "forward" or "backward". rounds: as asked for.
        """
        if not self.active:
            return make()
        told = {"direction": direction, "rounds": rounds}
        found = self._read(comm, "halo", told)
        if found is None:
            plan, weight = make()
            self._write("halo", told, _pieces_of_halo(plan) | {"weight": _array(weight)})
            return plan, weight
        return _halo_of(found, edges), _tensor(found, "weight")

    def _read(self, comm: Any, what: str, told: dict[str, Any]) -> Arrays | None:
        """Return what is kept, None unless all ranks have theirs. Collective."""
        found, wrong = plan_file.read(self._path(what, told), self._key | told)
        mine = found is not None, wrong
        every = comm.allgather(mine) if comm.size > 1 else [mine]
        self.notes += [each for _, each in every if each][:1]
        return found if all(there for there, _ in every) else None

    def _write(self, what: str, told: dict[str, Any], arrays: dict[str, Pieces]) -> None:
        """Keep arrays, and remove what was kept for other edges. Nothing is kept where that cannot be."""
        path = self._path(what, told)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._remove_others(path)
            free = os.statvfs(self._folder)
            size = plan_file.size_of(self._key | told, arrays) + SLACK
            if size > FREE_SHARE * free.f_bavail * free.f_frsize:
                raise InputError(f"no room in {self._folder}")
            plan_file.write(path, self._key | told, arrays)
        except (OSError, InputError) as error:
            self.notes.append(f"plans are not kept for the next run: {error}")

    def _path(self, what: str, told: dict[str, Any]) -> Path:
        """Return the path of a file: for which edges, then for which plan of them."""
        rest = {name: each for name, each in self._key.items() if name not in ("uuid", "edges")} | told
        plan = xxhash.xxh3_64_hexdigest(repr(sorted(rest.items())).encode())
        edges = xxhash.xxh3_64_hexdigest(f"{self._key['uuid']} {self._key['edges']}".encode())
        return self._folder / f"{edges}-{what}-{self._kind}-{self._key['rank']}of{self._ranks}-{plan}.plan"

    def _remove_others(self, path: Path) -> None:
        """Remove what this rank has kept of the same kind for edges that the file has not any more."""
        edges, what, kind, rank, _ = path.name.split("-")
        for other in self._folder.glob(f"*-{what}-{kind}-{rank}-*.plan"):
            if not other.name.startswith(f"{edges}-"):
                with suppress(OSError):
                    other.unlink()


def _array(tensor: Tensor | None) -> Pieces:
    return [] if tensor is None else [tensor.cpu().numpy()]


def _tensor(found: Arrays, name: str) -> Tensor | None:
    return torch.from_numpy(found[name]) if name in found else None


def _pieces_of(edges: SplitEdges, name: str) -> dict[str, Pieces]:
    """Return the arrays of a rank's edges by name, each in pieces."""
    lengths = np.array([len(counts) for _, counts in edges.runs], dtype=np.int64)
    return {
        f"{name}/owners": [edges.owners],
        f"{name}/rows": [edges.rows],
        f"{name}/lengths": [lengths],
        f"{name}/destinations": [destinations for destinations, _ in edges.runs],
        f"{name}/counts": [counts for _, counts in edges.runs],
        f"{name}/empty": [edges.empty],
        f"{name}/indices": [edges.indices],
        f"{name}/halo": [edges.halo],
        f"{name}/halo_bounds": [edges.halo_bounds],
        f"{name}/size": [np.array([edges.destinations])],
    }


def _edges_of(found: Arrays, name: str, rank: int) -> SplitEdges:
    cuts = np.cumsum(found[f"{name}/lengths"])[:-1]
    runs = (np.split(found[f"{name}/{each}"], cuts) for each in ("destinations", "counts"))
    return SplitEdges(
        rank=rank,
        destinations=int(found[f"{name}/size"][0]),
        owners=found[f"{name}/owners"],
        rows=found[f"{name}/rows"],
        runs=list(zip(*runs, strict=True)),
        empty=found[f"{name}/empty"],
        indices=found[f"{name}/indices"],
        edge=None,
        halo=found[f"{name}/halo"],
        halo_bounds=found[f"{name}/halo_bounds"],
    )


def _pieces_of_halo(plan: Plan) -> dict[str, Pieces]:
    lists = plan.lists
    assert lists is not None  # it is a halo's
    return {
        "chunks": [plan.chunks],
        "segments": [plan.segments],
        "indices": [plan.indices],
        "receive_counts": [lists.receive_counts],
        "send_rows": [lists.send_rows],
        "send_counts": [lists.send_counts],
        "send_places": [lists.send_places],
        "sizes": [np.array([lists.capacity, lists.most_sent])],
    }


def _halo_of(found: Arrays, edges: SplitEdges) -> Plan:
    capacity, most_sent = found["sizes"].tolist()
    lists = HaloLists(
        receive_counts=found["receive_counts"],
        send_rows=found["send_rows"],
        send_counts=found["send_counts"],
        send_places=found["send_places"],
        capacity=capacity,
        most_sent=most_sent,
    )
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
