"""Layouts of results, operation by operation, below autograd; an operation without a rule is refused.

A rule takes a call and returns the layout of its results. What it lets pass is right on each rank's part by itself: it
neither reduces, reorders nor slices a divided dimension, combines items of different lists, nor computes with numbers
of rows. `functions` serves what needs other ranks before it comes here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .layouts import PLAIN, Divided, Domain, Held, Layout, Numbers, Refused, dims, layout

Dims = list[Divided | None]
Rule = Callable[["Call"], Layout | list[Layout]]

# By overload: operation, names of its arguments, and whether it works value by value.
_names: dict[Any, tuple[str, list[str], bool]] = {}


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among arguments, and in lists of them."""
    found = list[Tensor]()
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            found += tensors_in(each)
        elif isinstance(each, dict):
            found += tensors_in(each.values())
    return found


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
            arguments = [each.name for each in schema.arguments]
            _names[function] = name.rstrip("_"), arguments, torch.Tag.pointwise in tags
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

    @property
    def known(self) -> bool:
        """Whether there is a rule."""
        return self.pointwise or self.name in RULES

    @property
    def numbers(self) -> Held:
        """What the first argument counts."""
        return layout(self.x).numbers

    def over(self, given: Any = None) -> list[int]:
        """Return dimensions of the first argument, counted from the front. [default: ``dim``; without it, all]"""
        given = self["dim"] if given is None else given
        count = self.x.dim()
        if given is None or (isinstance(given, (list, tuple)) and not given):
            return list(range(count))
        return [each % max(1, count) for each in (given if isinstance(given, (list, tuple)) else [given])]

    def refuse(self, what: str) -> Any:
        raise Refused(f"{self.name}: {what}")


def at(call: Call, dim: int | None = None) -> int:
    """Return a dimension of the first argument, counted from the front. [default: ``dim``, or the first]"""
    return call.over(call["dim"] or 0 if dim is None else dim)[0]


def _touched(call: Call, touched: Iterable[int]) -> None:
    """Refuse an operation along dimensions of the first argument of which one is divided."""
    for dim in touched:
        if found := dims(call.x)[dim]:
            call.refuse(
                f"works along dimension {dim}, which is that of {found}, divided between ranks: each would see its own "
                "part alone"
            )
        if dim == 0 and isinstance(call.numbers, tuple):
            call.refuse("mixes sources and destinations of edges")


def _whole(call: Call, other: bool) -> None:
    """Refuse to turn, or to mix, a list of edges. other: whether its first dimension would be another."""
    if other and isinstance(call.numbers, tuple):
        call.refuse("turns a list of edges, or mixes its sources and destinations")


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
                    f"combines rows of {found[place]} with a tensor {list(sizes)} that the graph does not know; give "
                    "it to forward, as graph.x, or make it of x.size(0)"
                )
    return found


_KEEPS_NUMBERS = {"clone", "detach", "alias", "_to_copy", "lift_fresh", "lift_fresh_copy", "where", "copy"}
_LIKE = {"zeros_like", "ones_like", "full_like", "empty_like"}


def pointwise(call: Call) -> list[Layout]:
    """Value by value, with broadcasting; a vector product along a dimension that is not divided."""
    given = tensors_in(call.arguments.values())
    held = [each for each in (layout(tensor).numbers for tensor in given) if each]
    numbers: Held = None
    if call.name == "linalg_cross":
        _touched(call, call.over())
    if held and call.name not in _LIKE:
        pair = [each for each in held if isinstance(each, Numbers)]
        if call.name in ("eq", "ne") and len(pair) == 2 and pair[0].joined(pair[1]):
            pass
        elif call.name in _KEEPS_NUMBERS and call.out.dtype in (torch.int32, torch.int64):
            if len(held) != (2 if call.name == "where" or call.in_place else 1):
                call.refuse("mixes numbers of rows with other values")
            numbers = _all(call, held) if len(held) < 2 else _mixed(_all(call, held))
        else:
            _no_numbers(call)
    found = tuple(_joined(call, call.out.shape, [(each.shape, dims(each)) for each in given]))
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


def _mixed(held: Held) -> Held:
    if isinstance(held, tuple):
        return tuple(map(_mixed, held))  # type: ignore[arg-type]
    return held and replace(held, mixed=True)


def _all(call: Call, held: Sequence[Held]) -> Held:
    """Return what values of several tensors count."""
    found = held[0]
    for each in held[1:]:
        found = _both(call, found, each)
    return found


def _no_numbers(call: Call) -> None:
    if any(layout(each).numbers for each in tensors_in(call.arguments.values())):
        call.refuse(
            "computes with numbers of rows, which are this rank's own; use them as indices, or compare them"
        )


def reduction(call: Call) -> list[Layout]:
    """Over some dimensions, none of which is divided."""
    over = call.over()
    _no_numbers(call)
    _touched(call, over)
    kept = tuple(each for place, each in enumerate(dims(call.x)) if call["keepdim"] or place not in over)
    return [Layout(kept) for _ in call.results]


def along(call: Call) -> list[Layout]:
    """Along dimensions that are not divided, which stay."""
    given = call["dims"] if call["dim"] is None else call["dim"]
    over = call.over(-1 if given is None and call.name in ("sort", "topk", "glu", "argsort") else given)
    if call.name == "flip" and isinstance(call.numbers, tuple) and over == [0]:
        return [Layout(dims(call.x), call.numbers[::-1])]
    _no_numbers(call)
    _touched(call, over)
    return [Layout(dims(call.x)) for _ in call.results]


# ---- shapes


def viewed(call: Call) -> Layout:
    """The same values under another shape: a divided dimension may grow by its neighbours, or give them up."""
    x, found = call.x, list[Divided | None]([None] * call.out.dim())
    if x.shape == call.out.shape:
        return Layout(dims(x), call.numbers)
    _whole(call, True)
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
    return Layout(tuple(found), call.numbers)


def transpose(call: Call) -> Layout:
    order = list(range(call.x.dim()))
    if call.name == "permute":
        order = call.over(call["dims"])
    elif call.name == "t":
        order = order[::-1]
    else:
        one, other = at(call, call["dim0"]), at(call, call["dim1"])
        order[one], order[other] = order[other], order[one]
    _whole(call, order != sorted(order))
    return Layout(tuple(dims(call.x)[each] for each in order), call.numbers)


def unsqueeze(call: Call) -> Layout:
    place = call["dim"] % call.out.dim()
    _whole(call, place == 0)
    return Layout((*dims(call.x)[:place], None, *dims(call.x)[place:]), call.numbers)


def squeeze(call: Call) -> Layout:
    gone = [place for place in call.over() if call.x.shape[place] == 1]
    for place in gone:
        if entry := dims(call.x)[place]:
            call.refuse(f"leaves out the dimension of {entry}, of which this rank has one; name another one")
    _whole(call, 0 in gone)
    return Layout(tuple(each for place, each in enumerate(dims(call.x)) if place not in gone), call.numbers)


def expand(call: Call) -> Layout:
    new = call.out.dim() - call.x.dim()
    times = call["repeats"]
    _whole(call, bool(new) or (times is not None and times[0] != 1))
    return Layout((*[None] * new, *dims(call.x)), call.numbers)


def _part(x: Tensor, dim: int, part: Any) -> Held:
    """Return what the values count (`Layout.numbers`) in a selection of indices along a dimension of x.

    part: an index or a slice along ``dim``. Only a tensor whose first dimension has an entry per index, such as
    an edge_index, gives another result than for the whole tensor.
    """
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
        whole = start == 0 and step == 1 and (end is None or end >= 2**62 or end >= entry.everywhere)
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
    parts = [slice(int(low), int(high)) for low, high in itertools.pairwise(starts)]
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
    dim = (call["dim"] or 0) % given[0].dim()
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
    if dim == 0 and any(held) and not any(ends):  # sources and destinations
        every = [
            each if isinstance(each, tuple) else (each,) * len(t) for each, t in zip(held, given, strict=True)
        ]
        return Layout(tuple(found), _pair(call, [each for pair in every for each in pair]))
    return Layout(tuple(found), _all(call, held))


def _pair(call: Call, held: Sequence[Any]) -> tuple[Numbers, ...]:
    if not all(isinstance(each, Numbers) for each in held):
        call.refuse("mixes numbers of rows with other values")
    return tuple(held)


def stack(call: Call) -> Layout:
    given = call["tensors"]
    if any(dims(each) != dims(given[0]) for each in given):
        call.refuse("joins rows of different lists")
    dim = (call["dim"] or 0) % call.out.dim()
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
    names |= {"baddbmm": ("batch1", "batch2"), "mv": ("self", "vec"), "dot": ("self", "tensor")}
    names |= {"addmv": ("mat", "vec")}
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
    if entry is None:
        if numbers is not None:
            call.refuse("takes rows, by this rank's numbers, of a tensor that the graph does not know")
        return
    if not isinstance(numbers, Numbers):
        raise Refused(
            f"{call.name}: takes rows of {entry} by numbers that are not those of the graph's edges; for "
            "those of another graph call mgg.convert again"
        )
    whole = entry.domain.owner
    if numbers.domain not in (entry.domain, whole) or not entry.plain or (numbers.halo and whole is None):
        call.refuse(f"takes rows of {entry} by numbers of {numbers.domain}, of which some are another rank's")


def _indexed(  # noqa: PLR0912 - a case for each kind of index
    call: Call, x: Tensor, indices: Sequence[Tensor | None], shape: Sequence[int]
) -> tuple[Dims, Held]:
    """Return the entries of x[indices], of this shape, and what it counts."""
    entries, place = list(dims(x)), 0
    # First and last dimension that an index takes the place of, and entries.
    found: list[tuple[int, int, Dims]] = []
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
    x, indices = call.x, call["indices"]
    if call.name == "index_select":
        indices = [None] * at(call) + [call["index"]]
    elif call.name == "embedding":
        if call["scale_grad_by_freq"]:
            call.refuse("scales gradients by counts of this rank's rows; leave out scale_grad_by_freq")
        x, indices = call["weight"], [indices]
    found, numbers = _indexed(call, x, indices, call.out.shape)
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
    """Refuse numbers that occur again, since the order of edges tells which value stays; unless they are of edges of
    the same ends, which are in their order.
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
    if mine and call.name in ("index_copy", "scatter") and not call["reduce"] and isinstance(source, Tensor):
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
            if each.dtype == torch.int64 and not call["accumulate"] and values.numel() > 1:
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
        (along, "_softmax _log_softmax cumsum cumprod cummax cummin logcumsumexp flip roll glu"),
        (along, "sort argsort topk"),
        (reduction, "sum mean amax amin max min prod any all var std var_mean linalg_vector_norm norm"),
        (reduction, "logsumexp argmax argmin median nanmedian nansum mode kthvalue count_nonzero aminmax"),
        (pointwise, "copy fill zero floor_divide prelu _prelu_kernel hardswish log_sigmoid_forward clone"),
        (pointwise, "detach alias _to_copy lift_fresh lift_fresh_copy linalg_cross"),
        (pointwise, "zeros_like ones_like full_like empty_like"),
        (by_row, "native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm convolution"),
        (by_row, "mkldnn_convolution _thnn_fused_gru_cell _thnn_fused_lstm_cell"),
        (viewed, "view _unsafe_view reshape _reshape_alias"),
        (transpose, "permute t transpose"),
        (unsqueeze, "unsqueeze"),
        (squeeze, "squeeze"),
        (expand, "expand repeat"),
        (select, "select"),
        (slice_of, "slice"),
        (split, "split split_with_sizes unbind unsafe_split"),
        (pad, "constant_pad_nd"),
        (cat, "cat"),
        (stack, "stack"),
        (product, "mm addmm bmm baddbmm mv addmv dot"),
        (index, "index _unsafe_index index_select embedding"),
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
    if not call.known:
        call.refuse("is not known to be right on a part of the rows")
    found = (rule or pointwise)(call)
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
        if made[0].numbers != layout(call.x).numbers and layout(call.x).numbers:
            call.refuse("puts numbers of rows in the place of others")
        after = made[0].dims or (None,) * call.x.dim()
        if after != dims(call.x) or made[0].numbers != layout(call.x).numbers:
            call.refuse("puts values of this rank's rows into a tensor that is the same on all ranks")
    return made
