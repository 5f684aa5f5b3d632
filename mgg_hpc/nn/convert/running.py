"""A forward of a converted model: the layouts that it starts from, its exchanges, and agreement between ranks."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tag, Tensor, autograd
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import InputError
from ...plan.workload import prefix_sum
from ...runtime import mpi
from ...runtime.backends.arguments import RngKey
from ...runtime.exit_code import FailedElsewhere
from ...runtime.watchdog import calling
from ..gradients import digest
from ..graph.dist_graph import DistGraph, Extension, extend, extension, fold
from ..layers.random import Dropout, dropped
from ..spans import first_order
from ..workspace import accumulator, as_array
from .layouts import (
    PLAIN,
    Count,
    Divided,
    Domain,
    Layout,
    Numbers,
    Refused,
    dims,
    known,
    layout,
    mixed,
    over,
    put,
)
from .rules import RULES, Call, apply, at, tensors_in, viewed

# Arguments of operations that may hold numbers of this rank's rows.
OF_ROWS = {"size", "shape", "repeats", "stride", "storage_offset", "output_size", "N"}
PIECE = 16  # bits of a whole number that a row's value carries exactly, in any type but halves


class Lists:
    """The nodes and edges of a graph as domains, and lists that models make of them."""

    def __init__(self, graph: DistGraph) -> None:
        self.graph = graph
        index = graph.edge_index()
        self.index, self.weight = index, graph.edge_weight()
        self.names = sorted([*graph.part.edge_data, *["weight"] * (self.weight is not None)])
        low = int(prefix_sum(graph.counts)[graph.rank])
        numbers = np.append(np.arange(low, low + graph.rows), graph.halo())
        self.nodes = self._rows("nodes", graph.rows, graph.num_nodes, numbers, lambda: ids_of(graph))
        self.edges = Domain("edges", index.shape[1], graph.num_edges, lambda: pairs(graph, index))
        self.edges.ends = lambda: index
        over(self.index, self.edges, 1, (Numbers(self.nodes, halo=True), Numbers(self.nodes)))
        self.typed = self._typed() if graph.part.types else {}
        self._made: WeakValueDictionary[Any, Domain] = WeakValueDictionary()
        self._extensions = dict[Domain, Extension]()

    @staticmethod
    def _rows(name: str, rows: int, total: int, numbers: NDArray[np.int64], keys: Any) -> Domain:
        """Return the list of rows of nodes, which has that of rows and halo. numbers: the graph's, of the latter."""
        made, beyond = Domain(name, rows, total, keys), Domain(f"{name} and halo", len(numbers), 0, keys)
        made.beyond, beyond.owner, made.numbers = beyond, made, numbers
        return made

    def _typed(self) -> dict[Any, Domain]:
        """Return the lists of the types of nodes and edges by their keys."""
        types, found = self.graph.types, dict[Any, Domain]()
        for name, rows in types.nodes.items():
            keys = partial(lambda rows: ids_of(self.graph)[rows.cpu().numpy()], rows)
            found[name] = self._rows(
                f"nodes of {name}", len(rows), types.counts[name], types.numbers[name], keys
            )
        for key, places in types.edges.items():
            keys = partial(lambda places: self.edges.keys[places.cpu().numpy()], places)
            made = found[key] = Domain(f"edges of {key}", len(places), types.counts[key], keys)
            made.ends = partial(types.index.__getitem__, key)
            over(types.index[key], made, 1, (Numbers(found[key[0]], halo=True), Numbers(found[key[2]])))
        return found

    def extension(self, of: Domain) -> Extension | None:
        """Return the extension of a type's rows; None for that of all rows. Collective at the first call for a type."""
        if of is self.nodes:
            return None
        if of not in self._extensions:
            plan, rows = (
                self.graph.adjacency("edges").forward,
                torch.from_numpy(of.own - self.nodes.numbers[0]),
            )
            self._extensions[of] = extension(self.graph, plan, of.numbers, rows.to(self.graph.device))
        return self._extensions[of]

    def own(self, domain: Domain) -> bool:
        """Return whether a domain is one of this graph's, or was made of them."""
        given = (self.nodes, self.edges, *self.typed.values(), *self._made.values())
        return any(each is domain for each in given)

    def concatenated(self, parts: Sequence[Domain]) -> Domain:
        """Return the list (`Domain`) of the items of all ``parts``, one after another on each rank. Cached."""
        key = ("+", *map(id, parts))
        if (made := self._made.get(key)) is None:
            made = Domain(
                f"({' + '.join(each.name for each in parts)})",
                sum(each.local for each in parts),
                lambda: sum(each.total for each in parts),
                lambda: np.concatenate([mixed(each.keys, place) for place, each in enumerate(parts, 1)]),
            )
            made.parts, made.counted = list(parts), all(each.counted for each in parts)
            self._made[key] = made
        return made

    def chosen(self, run: Run, of: Divided, mask: Tensor, count: int) -> Domain:
        """Return the list of items that a mask chooses. count: of this rank's."""
        key = (id(of.domain), layout(mask).serial)
        if (made := self._made.get(key)) is None:
            chosen = mask.detach().reshape(-1).bool()
            if of.plain and (part := run.part_of(of.domain, chosen)) is not None:
                return part

            def keys() -> NDArray[np.uint64]:
                return places(of, len(chosen))[chosen.cpu().numpy()]

            made = Domain(f"some {of.domain.name}", count, lambda: run.total(count), keys)
            made.chosen_of = of.domain
            if (ends := of.domain.ends) is not None and of.plain:
                made.ends = lambda: ends()[:, chosen]
            self._made[key] = made
        return made


def lists_of(graph: DistGraph) -> Lists:
    """Return a graph's lists, the same for all models. Collective."""
    if "_lists" not in vars(graph):
        vars(graph)["_lists"] = Lists(graph)
    found: Lists = vars(graph)["_lists"]
    return found


def ids_of(graph: Any) -> NDArray[np.uint64]:
    """Return the user's ids of this rank's rows."""
    ids = torch.as_tensor(graph.ids).cpu()
    return np.asarray(ids).astype(np.uint64)


def pairs(graph: Any, index: Tensor) -> NDArray[np.uint64]:
    """Return numbers of the edges by both ends, and by place among edges of the same ends. Collective."""
    ids = torch.as_tensor(graph.ids).to(graph.device)
    source, target = index.cpu().numpy()
    far = extended(ids[:, None], graph)[:, 0].cpu().numpy()[source]
    near = ids.cpu().numpy()[target]
    order = np.lexsort((np.arange(len(far)), far, near))
    new = np.ones(len(far), bool)
    new[1:] = (far[order][1:] != far[order][:-1]) | (near[order][1:] != near[order][:-1])
    start = np.maximum.accumulate(np.where(new, np.arange(len(far)), 0)) if len(far) else order
    place = np.empty(len(far), np.int64)
    place[order] = np.arange(len(far)) - start
    return mixed(mixed(mixed(far.astype(np.uint64), 1), near), place)


def places(of: Divided, size: int) -> NDArray[np.uint64]:
    """Return numbers of the places along a divided dimension."""
    if of.plain:
        return of.domain.keys
    item = np.arange(size) // of.after % max(1, of.domain.local)
    other = np.arange(size) // (of.after * max(1, of.domain.local)) * of.after + np.arange(size) % of.after
    return mixed(of.domain.keys[item], other.astype(np.uint64))


def extended(x: Tensor, graph: Any, of: Extension | None = None) -> Tensor:
    """Return rows [n, F] of any dtype, followed by those of the halo, with gradients if they have the graph's dtype.

    of: the extension of the rows. [default: that of all rows] Whole numbers cross in pieces, exactly. Raises Refused
    for numbers of another floating-point type that would round.
    """
    if graph.ranks == 1:
        return x
    if not x.shape[1]:
        return extended(x.new_zeros(len(x), 1), graph, of)[:, :0]
    if x.dtype == graph.dtype:
        return extend(x, graph, of)
    if x.is_floating_point():
        if torch.promote_types(x.dtype, graph.dtype) != graph.dtype:
            raise Refused(
                f"rows of {x.dtype} on a graph of {graph.dtype}: open the graph with dtype={str(x.dtype)[6:]!r}"
            )
        return extend(x.to(graph.dtype), graph, of).to(x.dtype)
    if accumulator(graph.dtype) != graph.dtype:
        raise Refused(f"{x.dtype} rows of other ranks on a graph of {graph.dtype}; open the graph in float32")
    whole = x.long()
    pieces = [(whole >> shift) & (2**PIECE - 1) for shift in range(0, 64, PIECE)]
    parts = extend(torch.cat(pieces, 1).to(graph.dtype), graph, of).long().chunk(64 // PIECE, 1)
    whole = sum(
        (part << shift for part, shift in zip(parts, range(0, 64, PIECE), strict=True)),
        torch.zeros_like(parts[0]),
    )
    return whole.to(x.dtype)


class _Total(autograd.Function):
    """The sum of a value over all ranks; backward, the sum of its gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, graph: DistGraph) -> Tensor:
        ctx.graph = graph
        return _total(value, graph)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _total(gradient, ctx.graph), None


def _total(value: Tensor, graph: DistGraph) -> Tensor:
    wide = value.double() if not value.is_floating_point() else value.to(accumulator(value.dtype))
    wide = wide.clone(memory_format=torch.contiguous_format)
    graph.backend.collectives.sum(as_array(wide.view(-1)))
    return wide.to(value.dtype)


class Run:
    """One call of a converted model on this rank.

    lists: of its graph. draws: counts the calls of dropout; None to drop nothing. programs: by module. modules: by
    path. paths, state: by ids, paths of the modules, and of parameters and buffers with these. partial: whether tensors
    are a part of all rows. paused: operations are not looked at, since they are known to be right. exchanges: (module,
    what crossed, columns) of each. ways: how layers run, by path. pooled: whether values of all nodes were reduced to
    one. drew: whether random numbers were drawn for all, or rows dropped.
    """

    def __init__(self, lists: Lists, model: torch.nn.Module, draws: Dropout | None, programs: Any) -> None:
        self.lists, self.graph, self.draws, self.programs = lists, lists.graph, draws, programs
        self.modules = dict(model.named_modules())
        self.paths = {id(each): name for name, each in self.modules.items()}
        self.state = dict[int, tuple[str, Tensor]]()
        for path, each in self.modules.items():
            for name, held in {**vars(each)["_parameters"], **vars(each)["_buffers"]}.items():
                self.state.setdefault(id(held), (f"{path}.{name}", held))
        self.paused, self.partial = 0, lists.graph.ranks > 1
        self.ended = False
        self.exchanges: list[tuple[str, str, int]] = []
        self.ways: dict[str, str] = {}
        self.pooled = self.drew = Count.used = Count.read = False
        self._notes = list[str]()  # what was done since ranks last agreed
        self._before = 0  # a digest of all before

    # ---- agreement

    def note(self, what: str) -> None:
        """Add to what all ranks shall do alike."""
        if self.graph.ranks > 1:
            self._notes.append(what)

    def met(self, tensor: Tensor) -> None:
        """Note which of the model's a tensor is, or the values of one that comes from outside of forward."""
        own = self.state.get(id(tensor))
        if own is not None:
            self.note(f"taking {own[0]}")
        if not known(tensor):
            put(tensor, PLAIN)
            if own is None:
                with self.local():
                    self.note(
                        f"taking a tensor {list(tensor.shape)} from outside of forward, {digest(tensor.detach())}"
                    )

    def sync(self, error: BaseException | None = None) -> None:
        """Raise an error of any rank on all ranks, and one if they have done different things. Collective."""
        if self.graph.ranks == 1 or self.ended:
            return
        self._before = zlib.crc32("\n".join(self._notes).encode(), self._before)
        comm = self.graph.comm
        with calling("a converted model"):
            lowest, highest, wrong = mpi.largest(comm, [-self._before, self._before, error is not None])
            self.ended = bool(wrong) or highest != -lowest
            every: list[Any] = (
                [] if not self.ended else comm.allgather((_told(error), self._before, self._notes))
            )
        self._notes = []
        failed = [(told, rank) for rank, (told, *_) in enumerate(every) if told is not None]
        if failed:
            message, rank = next((each for each in failed if each[0]), failed[0])  # the user's first
            if error is None or (message and rank != self.graph.rank):
                raise InputError(message) if message else FailedElsewhere(f"rank {rank} failed") from error
            return
        if self.ended:
            rank = next(i for i, each in enumerate(every) if each[1] != every[0][1])
            pair = zip_longest(every[0][2], every[rank][2], fillvalue="nothing more")
            first, other = next(((a, b) for a, b in pair if a != b), ("something", "another thing"))
            raise InputError(
                f"{self.place()}: the model does not do the same on all ranks: {first} on rank 0, {other} on rank "
                f"{rank}; what it does, and takes from outside of forward, may depend neither on a rank nor on its rows"
            )

    def refused(self, error: Refused) -> InputError:
        return InputError(f"{self.place()}: {error}")

    @staticmethod
    def named(path: str, module: torch.nn.Module) -> str:
        """Return a module's path and class."""
        kind = type(module).__name__
        return f"{path} ({kind})" if path else kind

    def place(self) -> str:
        """Return the path of the innermost module whose code runs, and its class."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            module = frame.f_locals.get("self")
            if isinstance(module, torch.nn.Module) and id(module) in self.paths:
                return self.named(self.paths[id(module)], module)
            frame = frame.f_back
        return "the model"

    @contextmanager
    def local(self) -> Iterator[None]:
        """Compute on this rank's part within a block; layouts of results are set by hand."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    def again(self) -> None:
        """Refuse what a checkpoint of torch would compute again, by itself."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if hooks is not None and "checkpoint" in getattr(hooks[0], "__module__", ""):
            raise Refused(
                "torch's checkpoint would compute this again on a rank by itself; call the part without it"
            )

    def over(self, layer: Any, x: Tensor, more: dict[str, Any]) -> Tensor:
        """Return the rows of a fused layer. Collective."""
        out: Tensor = layer(x, self.graph, **more)
        columns = x.shape[1] if "edge_type" in more else min(x.shape[1], out.shape[1])
        self.exchanges.append((self.place(), "rows", columns))
        return put(out, Layout((dims(x)[0], None)))

    def before(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments that a function is called with."""
        return args, kwargs

    def after(self, func: Any, given: Any, out: Any) -> None:
        """Take note of the arguments and the result of a function."""

    # ---- lists

    def concatenated(self, parts: Sequence[Domain]) -> Domain:
        return self.lists.concatenated(parts)

    def chosen(self, of: Divided, mask: Tensor, count: int) -> Domain:
        return self.lists.chosen(self, of, mask, count)

    def part_of(self, domain: Domain, chosen: Tensor) -> Domain | None:
        """Return the part of a concatenation that is chosen, as all self loops that were added, if it is one.

        Collective for a concatenation.
        """
        parts = domain.parts
        if not parts:
            return None
        pieces = chosen.split([each.local for each in parts])
        some, full = [bool(each.any()) for each in pieces], [bool(each.all()) for each in pieces]
        for place, part in enumerate(parts):
            alone = full[place] and not any(some[:place] + some[place + 1 :])
            if self.total(int(alone)) == self.graph.ranks:
                return part
        return None

    # ---- collectives

    def total(self, number: int) -> int:
        """Return the sum of a number over all ranks. Collective."""
        if self.graph.ranks == 1:
            return number
        self.sync()
        with self.local():
            return int(self.graph.comm.allreduce(number))

    def summed(self, part: Tensor) -> Tensor:
        """Return the sum of a value over all ranks. Collective, and its backward."""
        self.again()
        self.pooled = True
        if self.graph.ranks == 1:
            return put(part, PLAIN)
        self.sync()
        with self.local():
            return put(_Total.apply(part, self.graph), PLAIN)

    @torch.no_grad()
    def most(self, part: Tensor, least: bool = False) -> Tensor:
        """Return the largest, or the smallest, of a value over all ranks. Collective."""
        from mpi4py import MPI

        self.again()
        self.pooled = True
        if self.graph.ranks > 1:
            self.sync()
            with self.local():
                values = (
                    part.detach().cpu().double() if part.is_floating_point() else part.detach().cpu().long()
                )
                values = values.contiguous()
                self.graph.comm.Allreduce(MPI.IN_PLACE, values.numpy(), MPI.MIN if least else MPI.MAX)
                part = values.to(part.device, part.dtype)
        return put(part, PLAIN)

    def extended(self, x: Tensor, dim: int) -> Tensor:
        """Return rows of this rank's nodes, followed by those of the halo, along a dimension. Collective."""
        of = dims(x)[dim].domain  # type: ignore[union-attr]
        return self._moved(x, dim, of, of.beyond, extended)

    def folded(self, x: Tensor, dim: int) -> Tensor:
        """Return the sums of what all ranks hold of each node, the adjoint of `extended`. Collective."""
        of = dims(x)[dim].domain.owner  # type: ignore[union-attr]
        return self._moved(x, dim, of, of, _folded)

    def _moved(self, x: Tensor, dim: int, of: Any, domain: Any, move: Any) -> Tensor:
        if layout(x).numbers is not None and self.graph.ranks > 1:
            raise Refused("takes numbers of rows from other ranks, which count theirs")
        self.again()
        self.sync()
        with self.local():
            extension = self.lists.extension(of) if self.graph.ranks > 1 else None
            ahead = x.movedim(dim, 0)
            rest = ahead.shape[1:]
            width = int(np.prod(rest))
            self.exchanges.append((self.place(), "rows" if move is extended else "sums", width))
            out = move(ahead.reshape(len(ahead), width), self.graph, extension)
            out = out.reshape(len(out), *rest).movedim(0, dim)
        entries = list(dims(x))
        entries[dim] = Divided(domain)
        return put(out, Layout(tuple(entries), layout(x).numbers))  # numbers: of one rank alone

    def settled(self, index: Tensor) -> Tensor:
        """Return numbers of nodes as this rank's own. Collective. Raises Refused if some on a rank are of the halo."""
        self.sync()
        of: Any = layout(index).numbers
        with self.local():
            if self.graph.comm.allreduce(int(bool((index >= of.domain.local).any()))):
                raise Refused(
                    "puts values at sources of edges, which are other ranks'; sums alone come to their owners"
                )
            found = index.view(index.shape)
        return put(found, Layout(dims(index), Numbers(of.domain)))

    def same(self, drawn: Tensor) -> None:
        """Replace random numbers by rank 0's. Collective."""
        if self.graph.ranks == 1:
            return
        self.drew = True
        self.note(f"{list(drawn.shape)}")
        self.sync()
        with self.local(), torch.no_grad():
            drawn.copy_(torch.from_numpy(self.graph.comm.bcast(drawn.detach().cpu().numpy())))

    def dropped(self, x: Tensor, p: float) -> Tensor:
        """Return divided rows after dropout, drawn by the items' numbers. Collective."""
        self.again()
        self.drew = True
        assert self.draws is not None
        draws = self.draws.draws
        draws.begin(draws.epoch + 1)
        key = RngKey(p, draws.seed, draws.epoch, self.draws.stream)
        dim = next(place for place, each in enumerate(dims(x)) if each)
        entry = dims(x)[dim]
        assert entry is not None
        self.sync()  # numbers of edges are exchanged once
        with self.local():
            if (
                entry == Divided(self.lists.nodes)
                and x.dim() == 2
                and not dim
                and x.dtype == self.graph.dtype
            ):
                return dropped(x, self.graph, key)
            keys = places(entry, x.shape[dim])
            if entry.domain is not self.lists.nodes:
                keys = mixed(keys, 7)
            ahead = x.movedim(dim, 0)
            wide = torch.float64 if x.dtype == torch.float64 else torch.float32
            ones = torch.ones(len(ahead), int(np.prod(ahead.shape[1:])), dtype=wide, device=x.device)
            factors = torch.empty_like(ones)
            if ones.numel():
                ids = torch.from_numpy((keys & np.uint64(2**48 - 1)).astype(np.int64)).to(x.device)
                self.graph.backend.dropout(as_array(ones), as_array(factors), as_array(ids), key)
            return x * factors.reshape(ahead.shape).movedim(0, dim).to(x.dtype)


def _told(error: BaseException | None) -> str | None:
    """Return what other ranks say of an error: its text if it is the user's, else "", and None without one."""
    return None if error is None else str(error) if isinstance(error, InputError) else ""


def _folded(x: Tensor, graph: DistGraph, of: Extension | None = None) -> Tensor:
    if graph.ranks == 1:
        return x
    if not x.shape[1]:
        return x[: graph.rows if of is None else len(of.rows)]  # type: ignore[arg-type]
    whole = not x.is_floating_point()
    if not whole and torch.promote_types(x.dtype, graph.dtype) != graph.dtype:
        raise Refused(
            f"sums of {x.dtype} on a graph of {graph.dtype}: open the graph with dtype={str(x.dtype)[6:]!r}"
        )
    found = fold(x.to(graph.dtype), graph, of)
    return (found.round() if whole else found).to(x.dtype)


class Below(TorchDispatchMode):
    """Gives each result its layout, below autograd, or refuses the operation."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        run, kwargs = self.run, kwargs or {}
        if run.paused:
            return func(*args, **kwargs)
        given = tensors_in((args, kwargs))
        divided, draws = (
            any(layout(each) is not PLAIN for each in given),
            Tag.nondeterministic_seeded in func.tags,
        )
        call = Call(run, func, args, kwargs)
        if run.graph.ranks > 1:
            self._noted(call, given)
        if divided and not call.known:  # in inference mode, an operation that consists of others
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        call.results = tensors_in((out,))
        if not divided:
            for each in call.results:
                if draws:
                    run.same(each)
                if draws or not known(each):
                    put(each, PLAIN)
            return out
        try:
            for each, made in zip(call.results, apply(call), strict=True):
                put(each, made)  # with a new serial, also in place
        except Refused as error:
            raise run.refused(error) from None
        if run.graph.ranks > 1:  # views of one row may have another layout until `functions` sets it
            run.note("a view" if RULES.get(call.name) is viewed else f"{call.name} {layout(call.out)}")
        return out

    def _noted(self, call: Call, given: Sequence[Tensor]) -> None:
        """Note the values from outside of forward: tensors, and numbers that are no sizes."""
        for each in given:
            self.run.met(each)
        of_rows = OF_ROWS
        if call.name == "slice" and dims(call.x)[at(call)]:
            of_rows = OF_ROWS | {"start", "end"}
        told = {name: each for name, each in call.arguments.items() if name not in of_rows and _is_told(each)}
        if told:
            self.run.note(f"{call.name} with {told}")


def _is_told(value: Any) -> bool:
    """Return whether a value is a number or a text, or a list of these."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_told, value))
    return isinstance(value, (int, float, complex, str))
