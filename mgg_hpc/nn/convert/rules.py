"""Layouts of results, operation by operation, below autograd; an operation without a rule is refused.

A rule takes a call and returns the layout of its results. What it lets pass is right on each rank's part by itself: it
neither reduces, reorders nor slices a divided dimension, combines items of different lists, nor computes with numbers of
rows. `functions` serves what needs other ranks before it comes here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .layouts import PLAIN, Divided, Domain, Held, Layout, Numbers, dims, layout

Dims = list[Divided | None]
Rule = Callable[["Call"], Layout | list[Layout]]

# By overload: operation, names of its arguments, and whether it works value by value.
_names: dict[Any, tuple[str, list[str], bool]] = {}


class Refused(Exception):  # noqa: N818 - it becomes an InputError that names the module
    """What is wrong, and what would do."""


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments, and in lists of them."""
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from tensors_in(each)
        elif isinstance(each, dict):
            yield from tensors_in(each.values())


class Call:
    """A call of an operation.

    run: the `Run` that it is part of. in_place: it changes its first argument. results: its tensors.
    """

    def __init__(self, run: Any, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.run = run
        if function not in _names:
            schema, variants = function._schema, function.overloadpacket
            name = schema.name.split("::")[-1]
            # Variants in place lack the tag of the others.
            packets = [variants, getattr(torch.ops.aten, name.rstrip("_"), variants)]
            tags = {tag for each in packets for kind in each.overloads() for tag in getattr(each, kind).tags}
            _names[function] = (
                name.rstrip("_"),
                [each.name for each in schema.arguments],
                torch.Tag.pointwise in tags,
            )
        self.name, names, self.pointwise = _names[function]
        self.in_place = function._schema.is_mutable
        self.arguments = dict(zip(names, args, strict=False)) | kwargs
        self.draws = torch.Tag.nondeterministic_seeded in function.tags
        self.results: list[Tensor] = []

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def x(self) -> Tensor:
        """The first argument."""
        found: Tensor = next(iter(self.arguments.values()))
        return found

    @property
    def out(self) -> Tensor:
        return self.results[0]

    def refuse(self, what: str) -> Any:
        raise Refused(f"{self.name}: {what}")


def at(call: Call, dim: int | None = None, x: Tensor | None = None) -> int:
    """Return a dimension, counted from the front. [default: the argument ``dim`` of the first argument]"""
    x = call.x if x is None else x
    dim = call["dim"] if dim is None else dim
    dim = 0 if dim is None else dim
    return dim + x.dim() if dim < 0 else dim


def _touched(call: Call, touched: Iterable[int], x: Tensor | None = None) -> None:
    """Refuse an operation over dimensions of which one is divided."""
    x = call.x if x is None else x
    for dim in touched:
        if found := dims(x)[dim]:
            call.refuse(
                f"works along dimension {dim}, which is that of {found}, divided between ranks: each would see its own "
                "part alone"
            )
        if dim == 0 and isinstance(layout(x).numbers, tuple):
            call.refuse("mixes sources and destinations of edges")


def _joined(call: Call, shape: Sequence[int], given: Iterable[tuple[Sequence[int], Sequence[Any]]]) -> Dims:
    """Return the entries of broadcast operands. given: shape and entries of each."""
    found: Dims = [None] * len(shape)
    given = list(given)
    if any(len(sizes) > len(shape) for sizes, _ in given):
        call.refuse("reduces rows, of which each rank has a part")
    for sizes, entries in given:
        for place, entry in enumerate(entries, len(shape) - len(sizes)):
            if entry is None:
                continue
            if found[place] not in (None, entry):
                call.refuse(f"combines a row for each of {found[place]} with one for each of {entry}")
            if shape[place] != entry.size:
                call.refuse(f"repeats the rows of {entry}")
            found[place] = entry
    for sizes, entries in given:
        for place, (size, entry) in enumerate(zip(sizes, entries, strict=True), len(shape) - len(sizes)):
            if place >= 0 and found[place] is not None and entry is None and size != 1:
                call.refuse(
                    f"combines rows of {found[place]} with a tensor {list(sizes)} that the graph does not know; give it "
                    "to forward, as graph.x, or make it of x.size(0)"
                )
    return found


def _broadcast(call: Call, given: Iterable[Tensor]) -> Dims:
    return _joined(call, call.out.shape, [(each.shape, dims(each)) for each in given])


_KEEPS_NUMBERS = {"clone", "detach", "alias", "_to_copy", "lift_fresh", "lift_fresh_copy", "where", "copy"}
_LIKE = {"zeros_like", "ones_like", "full_like", "empty_like"}


def pointwise(call: Call) -> list[Layout]:
    """Value by value, with broadcasting."""
    given = list(tensors_in(call.arguments.values()))
    held = [layout(each).numbers for each in given]
    numbers: Held = None
    if any(held) and call.name not in _LIKE:
        if call.name in ("eq", "ne"):
            pair = [each for each in held if isinstance(each, Numbers)]
            if len(pair) != 2 or pair[0].joined(pair[1]) is None:
                call.refuse("compares numbers of rows, which differ by rank, with others")
        elif call.name in _KEEPS_NUMBERS and not call.out.is_floating_point():
            values = [each for each in held if each is not None]
            if (
                len(values) != (2 if call.name == "where" or call.in_place else 1)
                or call.out.dtype == torch.bool
            ):
                call.refuse("mixes numbers of rows with other values")
            numbers = values[0]
            for each in values[1:]:
                numbers = _both(call, numbers, each)
        else:
            call.refuse(
                "computes with numbers of rows, which are this rank's own; use them as indices, or compare them"
            )
    found = tuple(_broadcast(call, given))
    return [Layout(found if each.dim() == len(found) else (), numbers) for each in call.results]


def _both(call: Call, one: Held, other: Held) -> Held:
    """Return what is counted by values of which some come of one tensor and some of another."""
    if isinstance(one, Numbers) and isinstance(other, Numbers):
        joined = one.joined(other)
        return joined if joined else call.refuse(f"mixes numbers of {one.domain} and {other.domain}")
    if one is None or other is None:
        return call.refuse("mixes numbers of rows with other values") if one or other else None
    pair = one if isinstance(one, tuple) else other
    assert isinstance(pair, tuple)
    ones, others = (each if isinstance(each, tuple) else (each,) * len(pair) for each in (one, other))
    if len(ones) != len(others):
        call.refuse("mixes numbers of rows with other values")
    return tuple(_both(call, *each) for each in zip(ones, others, strict=True))  # type: ignore[misc]


def _no_numbers(call: Call) -> None:
    if any(layout(each).numbers for each in tensors_in(call.arguments.values())):
        call.refuse(
            "computes with numbers of rows, which are this rank's own; use them as indices, or compare them"
        )


def reduction(call: Call) -> list[Layout]:
    """Over some dimensions, none of which is divided."""
    given = call["dim"]
    count = call.x.dim()
    every = given is None or (isinstance(given, (list, tuple)) and not given)
    over = (
        {*range(count)}
        if every
        else {at(call, each) for each in (given if isinstance(given, (list, tuple)) else [given])}
    )
    _no_numbers(call)
    _touched(call, over)
    kept = tuple(each for place, each in enumerate(dims(call.x)) if call["keepdim"] or place not in over)
    return [Layout(kept) for _ in call.results]


def along(call: Call) -> list[Layout]:
    """Along a dimension that is not divided, which stays."""
    given = next((call[each] for each in ("dim", "dims") if call[each] is not None), None)
    if given is None:
        given = -1 if call.name in ("sort", "topk", "glu", "argsort") else list(range(call.x.dim()))
    if call.name == "roll" and not given:
        given = list(range(call.x.dim()))
    over = [at(call, each) for each in (given if isinstance(given, (list, tuple)) else [given])]
    numbers = layout(call.x).numbers
    if call.name == "flip" and isinstance(numbers, tuple) and over == [0]:
        return [Layout(dims(call.x), numbers[::-1])]
    _no_numbers(call)
    _touched(call, over)
    return [Layout(dims(call.x)) for _ in call.results]


def cross(call: Call) -> list[Layout]:
    """Value by value but for a dimension that is not divided."""
    _touched(call, [at(call)])
    return pointwise(call)


# ---- shapes


def viewed(call: Call) -> Layout:
    """The same values under another shape: a divided dimension may grow by its neighbours, or give them up."""
    x, found = call.x, list[Divided | None]([None] * call.out.dim())
    numbers = layout(x).numbers
    if x.shape == call.out.shape:
        return Layout(dims(x), numbers)
    if isinstance(numbers, tuple):
        call.refuse("mixes sources and destinations of edges")
    for place, entry in enumerate(dims(x)):
        if entry is None:
            continue
        before = math.prod(x.shape[:place]) * entry.before
        after = math.prod(x.shape[place + 1 :]) * entry.after
        fits = list[tuple[bool, int, Divided]]()
        for there, size in enumerate(call.out.shape):
            ahead, behind = math.prod(call.out.shape[:there]), math.prod(call.out.shape[there + 1 :])
            if not ahead or not behind or before % ahead or after % behind:
                continue
            made = Divided(entry.domain, before // ahead, after // behind)
            if size == made.size:
                fits.append((there != place or not made.plain, there, made))
        if not fits:
            call.refuse(f"divides the rows of {entry} otherwise")
        _, there, made = min(fits, key=lambda each: each[:2])
        found[there] = made
    return Layout(tuple(found), numbers)


def _moved(call: Call, order: Sequence[int]) -> Layout:
    numbers = layout(call.x).numbers
    if isinstance(numbers, tuple) and list(order) != list(range(len(order))):
        call.refuse("turns a list of edges")
    return Layout(tuple(dims(call.x)[each] for each in order), numbers)


def transpose(call: Call) -> Layout:
    order = list(range(call.x.dim()))
    if call.name == "permute":
        order = [at(call, each) for each in call["dims"]]
    elif call.name == "t":
        order = order[::-1]
    else:
        one, other = at(call, call["dim0"]), at(call, call["dim1"])
        order[one], order[other] = order[other], order[one]
    return _moved(call, order)


def unsqueeze(call: Call) -> Layout:
    place = call["dim"] + call.out.dim() if call["dim"] < 0 else call["dim"]
    if isinstance(layout(call.x).numbers, tuple) and place == 0:
        call.refuse("turns a list of edges")
    entries = list(dims(call.x))
    return Layout((*entries[:place], None, *entries[place:]), layout(call.x).numbers)


def squeeze(call: Call) -> Layout:
    x, given = call.x, call["dim"]
    over = (
        range(x.dim())
        if given is None
        else [at(call, each) for each in (given if isinstance(given, list) else [given])]
    )
    for place in over:
        if (entry := dims(x)[place]) and x.shape[place] == 1:
            call.refuse(
                f"leaves out the dimension of {entry}, of which this rank has one; name another dimension"
            )
    gone = {place for place in over if x.shape[place] == 1}
    if isinstance(layout(x).numbers, tuple) and 0 in gone:
        call.refuse("turns a list of edges")
    return Layout(tuple(each for place, each in enumerate(dims(x)) if place not in gone), layout(x).numbers)


def expand(call: Call) -> Layout:
    new = call.out.dim() - call.x.dim()
    if new and isinstance(layout(call.x).numbers, tuple):
        call.refuse("turns a list of edges")
    return Layout((*[None] * new, *dims(call.x)), layout(call.x).numbers)


def repeat(call: Call) -> Layout:
    times = call["repeats"]
    new = len(times) - call.x.dim()
    for place, entry in enumerate(dims(call.x)):
        if entry and times[new + place] != 1:
            call.refuse(f"repeats the rows of {entry}")
    numbers = layout(call.x).numbers
    if isinstance(numbers, tuple) and (new or times[0] != 1):
        call.refuse("repeats a list of edges")
    return Layout((*[None] * new, *dims(call.x)), numbers)


def _part(x: Tensor, dim: int, part: Any) -> Held:
    """Return what a part of the indices of a dimension counts. part: an index or a slice."""
    numbers = layout(x).numbers
    return numbers[part] if dim == 0 and isinstance(numbers, tuple) else numbers


def select(call: Call) -> Layout:
    x, dim = call.x, at(call)
    if dims(x)[dim]:
        _touched(call, [dim])
    return Layout(dims(x)[:dim] + dims(x)[dim + 1 :], _part(x, dim, call["index"]))


def slice_of(call: Call) -> Layout:
    x, dim = call.x, at(call)
    start, end, step = call["start"] or 0, call["end"], call["step"] or 1
    if entry := dims(x)[dim]:
        whole = start == 0 and step == 1 and (end is None or end >= 2**62 or end >= entry.count)
        if not whole:
            _touched(call, [dim])
        return Layout(dims(x), layout(x).numbers)
    return Layout(dims(x), _part(x, dim, slice(start, end, step)))


def split(call: Call) -> list[Layout]:
    x, dim = call.x, at(call)
    if dims(x)[dim]:
        _touched(call, [dim])
    if call.name == "unbind":
        rest = dims(x)[:dim] + dims(x)[dim + 1 :]
        return [Layout(rest, _part(x, dim, i)) for i in range(len(call.results))]
    starts = np.cumsum([0, *(each.shape[dim] for each in call.results)])
    parts = [slice(int(low), int(high)) for low, high in zip(starts, starts[1:], strict=False)]
    return [Layout(dims(x), _part(x, dim, part)) for part in parts]


def pad(call: Call) -> Layout:
    _no_numbers(call)
    sides = call["pad"]
    _touched(call, [call.x.dim() - 1 - i for i in range(len(sides) // 2) if any(sides[2 * i : 2 * i + 2])])
    return Layout(dims(call.x))


def cat(call: Call) -> Layout:
    """One after another: of items on this rank, a list that has all items of the lists."""
    given = [each for each in call["tensors"] if each.shape != (0,) or layout(each) is not PLAIN]
    if not given:
        return PLAIN
    dim = at(call, x=given[0])
    rest = [[*dims(each)[:dim], None, *dims(each)[dim + 1 :]] for each in given]
    found = rest[0]
    if any(each != found for each in rest):
        call.refuse("joins rows of different lists")
    ends = [dims(each)[dim] for each in given]
    if any(ends):
        domains = [each.domain for each in ends if each is not None and each.plain]
        if len(domains) < len(ends):
            call.refuse(f"joins rows that are divided between ranks ({next(filter(None, ends))}) with others")
        found[dim] = Divided(call.run.concatenated(domains)) if len(domains) > 1 else ends[0]
    held = [layout(each).numbers for each in given]
    if dim == 0 and any(isinstance(each, tuple) for each in held):
        pairs = [
            each if isinstance(each, tuple) else (each,) * len(t) for each, t in zip(held, given, strict=True)
        ]
        return Layout(tuple(found), _pair(call, [each for pair in pairs for each in pair]))
    if dim == 0 and any(held) and not any(ends):
        return Layout(
            tuple(found), _pair(call, [h for h, t in zip(held, given, strict=True) for _ in range(len(t))])
        )
    numbers = held[0]
    for each in held[1:]:
        numbers = _both(call, numbers, each)
    return Layout(tuple(found), numbers)


def _pair(call: Call, held: Sequence[Any]) -> tuple[Numbers, ...]:
    if not all(isinstance(each, Numbers) for each in held):
        call.refuse("mixes numbers of rows with other values")
    return tuple(held)


def stack(call: Call) -> Layout:
    given = call["tensors"]
    if any(dims(each) != dims(given[0]) for each in given):
        call.refuse("joins rows of different lists")
    dim = call["dim"] or 0
    dim = dim + call.out.dim() if dim < 0 else dim
    entries, held = dims(given[0]), [layout(each).numbers for each in given]
    numbers: Held = None
    if any(held):
        numbers = _pair(call, held)
        if dim != 0:
            numbers = numbers[0] if len(set(numbers)) == 1 else call.refuse("turns a list of edges")
    return Layout((*entries[:dim], None, *entries[dim:]), numbers)


# ---- products


def product(call: Call) -> Layout:
    """Matrix products, whose inner dimension is not divided."""
    _no_numbers(call)
    names = {"mm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "bmm": ("self", "mat2")}
    names |= {
        "baddbmm": ("batch1", "batch2"),
        "mv": ("self", "vec"),
        "addmv": ("mat", "vec"),
        "dot": ("self", "tensor"),
    }
    one, other = (call[each] for each in names[call.name])
    left, right = dims(one), dims(other)
    inner = left[-1] or right[max(0, len(right) - 2)]
    if inner:
        call.refuse(
            f"sums over the rows of {inner}, of which this rank has a part; write it as a sum over dimension 0"
        )
    found: Dims = [*left[:-1], *right[-1:]] if len(right) > 1 else list(left[:-1])
    if len(right) == 3:
        found[:1] = _joined(call, one.shape[:1], [(one.shape[:1], left[:1]), (other.shape[:1], right[:1])])
    if call.name.startswith(("add", "badd")):
        found = _joined(call, call.out.shape, [(call.out.shape, found), (call.x.shape, dims(call.x))])
    return Layout(tuple(found))


def by_row(call: Call) -> list[Layout]:
    """Layers of torch that compute each item of the first dimension by itself."""
    x = call.x
    _no_numbers(call)
    last = x.dim() - len(call["normalized_shape"]) if call.name == "native_layer_norm" else 1
    _touched(call, range(last, x.dim()))
    for each in tensors_in(list(call.arguments.values())[1:]):
        if any(dims(each)) and dims(each)[:1] != dims(x)[:1]:
            call.refuse("takes parameters with a row for each of this rank's")
    if call.name == "native_batch_norm" and call["training"]:
        call.refuse("takes statistics of this rank's rows alone")
    entries = dims(x)[:last]
    return [
        Layout(tuple(entries[: t.dim()]) + (None,) * max(0, t.dim() - last))
        if t.dim() >= len(entries)
        and all(e is None or e.size == s for e, s in zip(entries, t.shape, strict=False))
        else PLAIN
        for t in call.results
    ]


# ---- indices


def _reads(call: Call, entry: Divided | None, index: Tensor) -> None:
    """Refuse numbers that do not count this dimension. entry: of the dimension that is indexed."""
    numbers = layout(index).numbers
    if entry is None and numbers is not None:
        call.refuse("takes rows, by this rank's numbers, of a tensor that the graph does not know")
    if entry is None:
        return
    if numbers is None or isinstance(numbers, tuple):
        call.refuse(f"takes rows of {entry} by numbers that are not those of the graph's edges")
    whole = entry.domain.owner
    fits = numbers.domain in (entry.domain, whole) and entry.plain  # type: ignore[union-attr]
    if not fits or (numbers.halo and whole is None):  # type: ignore[union-attr]
        call.refuse(f"takes rows of {entry} by numbers of {numbers.domain}, of which some are another rank's")  # type: ignore[union-attr]


def _indexed(
    call: Call, x: Tensor, indices: Sequence[Tensor | None], shape: Sequence[int]
) -> tuple[Dims, Held]:
    """Return the entries of x[indices], of this shape, and what it counts."""
    entries, place = list(dims(x)), 0
    found: list[
        tuple[int, int, Dims]
    ] = []  # first and last dimension that an index takes the place of, and entries
    for index in indices:
        if index is None:
            place += 1
        elif index.dtype in (torch.bool, torch.uint8):
            end = place + index.dim()
            if list(dims(index)) != entries[place:end]:
                call.refuse("chooses rows by a mask that is not of the same list")
            if layout(index).numbers:
                call.refuse("chooses rows by numbers")
            one = next(filter(None, entries[place:end]), None)
            count = shape[place] if len(found) == 0 else -1
            found.append((place, end, [one and Divided(call.run.chosen(one, index, count))]))
            place = end
        else:
            _reads(call, entries[place], index)
            found.append((place, place + 1, list(dims(index))))
            place += 1
    numbers = layout(x).numbers
    if isinstance(numbers, tuple) and found and found[0][0] == 0:
        index = next(each for each in indices if each is not None)
        if layout(index) is not PLAIN or len(found) > 1 or index.dim() != 1:
            call.refuse("mixes sources and destinations of edges")
        numbers = tuple(numbers[each] for each in index.tolist())
    if len(found) == 1:
        (low, high, made), *_ = found
        return [*entries[:low], *made, *entries[high:]], numbers
    if any(any(made) or any(entries[low:high]) for low, high, made in found):
        whole = [each for each in indices if each is not None]
        if any(each.dtype == torch.bool for each in whole):
            call.refuse("indexes several dimensions at once, of which one is divided")
        sizes = torch.broadcast_shapes(*(each.shape for each in whole))
        joined = _joined(call, sizes, [(each.shape, dims(each)) for each in whole])
    else:
        if any(entries):  # of dimensions that stay
            call.refuse("indexes several dimensions at once, beside one that is divided")
        return [None] * len(shape), numbers
    places = [low for low, _, _ in found]
    left = [each for place, each in enumerate(entries) if place not in places]
    if places == list(range(places[0], places[-1] + 1)):
        return [*left[: places[0]], *joined, *left[places[0] :]], numbers
    return [*joined, *left], numbers


def index(call: Call) -> Layout:
    found, numbers = _indexed(call, call.x, call["indices"], call.out.shape)
    return Layout(tuple(found), numbers)


def index_select(call: Call) -> Layout:
    dim = at(call)
    found, numbers = _indexed(call, call.x, [None] * dim + [call["index"]], call.out.shape)
    return Layout(tuple(found), numbers)


def embedding(call: Call) -> Layout:
    found, numbers = _indexed(call, call["weight"], [call["indices"]], call.out.shape)
    return Layout(tuple(found), numbers)


def gather(call: Call) -> Layout:
    x, index, dim = call.x, call["index"], at(call)
    _alike(call, x, index, dim)
    _reads(call, dims(x)[dim], index)
    numbers = layout(x).numbers
    return Layout(dims(index), call.refuse("mixes edges") if isinstance(numbers, tuple) else numbers)


def _alike(call: Call, one: Tensor, other: Tensor, but: int) -> None:
    """Refuse tensors whose dimensions, but one, are not of the same lists."""
    for place, (mine, theirs) in enumerate(zip(dims(one), dims(other), strict=True)):
        if place != but and mine != theirs:
            call.refuse(f"combines rows of {mine or 'no list'} with rows of {theirs or 'no list'}")


def _once(call: Call, index: Tensor) -> None:
    """Refuse numbers that occur again, since the order of edges tells which value stays, unless of edges of the same ends,
    which are in their order.
    """
    entry = dims(index)[0] if index.dim() == 1 else None
    ends = entry.domain.ends if entry is not None and entry.plain else None
    again = index.numel() - len(index.unique())
    if again and (
        ends is None or len(torch.cat([ends(), index[None]]).unique(dim=1).T) != index.numel() - again
    ):
        call.refuse(
            "puts several values at the same row, of which the last one stays; the order of edges is not kept"
        )


def scatter(call: Call) -> Layout:
    """Into rows of this rank, to which only items on this rank belong."""
    x, index, dim = call.x, call["index"], at(call)
    source = call["src"] if call["src"] is not None else call["source"]
    given = [each for each in (x, source) if isinstance(each, Tensor)]
    if any(layout(each).numbers for each in given):
        call.refuse("puts numbers of rows")
    if index.dim() == x.dim() and not call.name.startswith("index_"):
        for each in given:
            _alike(call, each, index, dim)
        mine = dims(index)[dim]
    else:
        mine = dims(index)[0] if index.dim() else None
        if isinstance(source, Tensor) and source.dim() == x.dim():
            _alike(call, x, source, dim)
    if isinstance(source, Tensor) and source.dim() == x.dim() and dims(source)[dim] != mine:
        call.refuse("combines rows of different lists")
    _reads(call, dims(x)[dim], index)
    if mine and (call.name in ("index_copy", "scatter") and not call["reduce"]):
        _once(call, index)
    if dims(x)[dim] is None and mine:
        call.refuse(f"reduces the rows of {mine}, of which this rank has a part")
    return Layout(dims(x))


def index_put(call: Call) -> Layout:
    x, values = call.x, call["values"]
    if layout(x).numbers or layout(values).numbers:
        call.refuse("puts numbers of rows")
    indices = call["indices"]
    sizes = list(x[tuple(slice(None) if each is None else each for each in indices)].shape)
    found, _ = _indexed(call, x, indices, sizes)
    place = 0
    for each in indices:
        wide = each.dim() if each is not None and each.dtype in (torch.bool, torch.uint8) else 1
        if each is not None and any(dims(each)):
            if not any(dims(x)[place : place + wide]):
                call.refuse("puts values of this rank's rows into a tensor that is the same on all ranks")
            if each.dtype == torch.int64 and not call["accumulate"]:
                _once(call, each)
        place += wide
    _joined(call, sizes, [(sizes, found), (values.shape, dims(values))])
    return Layout(dims(x))


def nonzero(call: Call) -> Layout:
    _no_numbers(call)
    (entry, *rest) = dims(call.x)
    if rest or entry is None or not entry.plain:
        call.refuse("lists places in more than one dimension")
    assert entry is not None
    chosen: Domain = call.run.chosen(entry, call.x, call.out.shape[0])
    return Layout((Divided(chosen), None), Numbers(entry.domain))


def plain(call: Call) -> list[Layout]:
    return [PLAIN] * len(call.results)


RULES: dict[str, Rule] = {
    name: rule
    for rule, names in (
        (
            along,
            "_softmax _log_softmax cumsum cumprod cummax cummin logcumsumexp sort argsort topk flip roll glu",
        ),
        (
            reduction,
            "sum mean amax amin max min prod any all var std var_mean linalg_vector_norm norm logsumexp",
        ),
        (reduction, "argmax argmin median nanmedian nansum mode kthvalue count_nonzero aminmax"),
        (
            pointwise,
            "copy fill zero floor_divide prelu _prelu_kernel hardswish log_sigmoid_forward clone detach alias",
        ),
        (pointwise, "_to_copy lift_fresh lift_fresh_copy zeros_like ones_like full_like empty_like"),
        (cross, "linalg_cross"),
        (by_row, "native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm convolution"),
        (by_row, "mkldnn_convolution _thnn_fused_gru_cell _thnn_fused_lstm_cell"),
        (viewed, "view _unsafe_view reshape _reshape_alias"),
        (transpose, "permute t transpose"),
        (unsqueeze, "unsqueeze"),
        (squeeze, "squeeze"),
        (expand, "expand"),
        (repeat, "repeat"),
        (select, "select"),
        (slice_of, "slice"),
        (split, "split split_with_sizes unbind unsafe_split"),
        (pad, "constant_pad_nd"),
        (cat, "cat"),
        (stack, "stack"),
        (product, "mm addmm bmm baddbmm mv addmv dot"),
        (index, "index _unsafe_index"),
        (index_select, "index_select"),
        (embedding, "embedding"),
        (gather, "gather"),
        (scatter, "scatter scatter_add scatter_reduce index_add index_reduce index_copy index_fill"),
        (index_put, "index_put _index_put_impl _unsafe_index_put"),
        (nonzero, "nonzero"),
        (plain, "new_zeros new_ones new_full new_empty new_empty_strided"),
    )
    for name in names.split()
}


def apply(call: Call) -> list[Layout]:
    """Return the layouts of a call's results. Raises Refused."""
    if not call.results:
        call.refuse("reads a value of this rank's rows, by which the ranks might go different ways")
    rule = RULES.get(call.name)
    if call.draws and not call.name.startswith("_scaled_dot_product"):
        call.refuse("draws for this rank's rows alone; F.dropout draws by the numbers of nodes and edges")
    if rule is None:
        rule = pointwise if call.pointwise else call.refuse("is not known to be right on a part of the rows")
    found = rule(call)
    made = found if isinstance(found, list) else [found] * len(call.results)
    if call["out"] is not None:
        call.refuse("writes this rank's rows to out; let it return them")
    for each, tensor in zip(made, call.results, strict=True):
        if sum(entry is not None for entry in each.dims) > 1:
            call.refuse("combines all rows with all rows, of which this rank has a part")
        for entry, size in zip(each.dims, tensor.shape, strict=False):
            if entry is not None and entry.size != size:
                call.refuse(f"gives {size} rows, and this rank has {entry.size} of {entry}")
    if call.in_place:
        after = made[0].dims or (None,) * call.x.dim()
        if after != dims(call.x) or made[0].numbers != layout(call.x).numbers:
            call.refuse("puts values of this rank's rows into a tensor that is the same on all ranks")
    return made
