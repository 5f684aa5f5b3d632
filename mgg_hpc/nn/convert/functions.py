"""Functions of torch in a converted model's forward, above autograd: those that need other ranks are served here.

What a function needs of other ranks it gets by one exchange with gradients: rows of the halo where rows are taken by
sources of edges, sums at their owners where values are added to sources, sums over all ranks where all rows are
reduced. The same functions of one rank's rows, and all others, go through to `rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .layouts import (
    PLAIN,
    Count,
    Divided,
    Layout,
    Numbers,
    Refused,
    dims,
    divided,
    known,
    layout,
    over,
    put,
    size_of,
)
from .rules import tensors_in
from .running import Run

Served = Callable[[Run, Any, tuple[Any, ...], dict[str, Any]], Any]
_SERVED: dict[Any, Served] = {}


def _serves(names: str) -> Callable[[Served], Served]:
    """Decorate what takes the place of functions, by their names in torch, Tensor and torch.nn.functional."""

    def entered(served: Served) -> Served:
        owners = (torch, Tensor, F, torch.linalg, torch.special, torch._C._nn)
        for name in names.split():
            found = [getattr(owner, name) for owner in owners if callable(getattr(owner, name, None))]
            assert found, name
            _SERVED.update(dict.fromkeys(found, served))
        return served

    return entered


def _reduces(names: str) -> Callable[[Served], Served]:
    """Decorate, as `_serves`, what computes on this rank's part; its results are the same on all ranks by default."""

    def entered(served: Served) -> Served:
        def alone(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
            with run.local():
                out = served(run, func, args, kwargs)
                return put(out, PLAIN) if isinstance(out, Tensor) and not known(out) else out

        return _serves(names)(alone)

    return entered


class Above(TorchFunctionMode):
    """Serves functions, and gives models sizes of all ranks."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        run, kwargs = self.run, kwargs or {}
        if run.paused:
            return func(*args, **kwargs)
        try:
            args, kwargs = run.before(func, args, kwargs)
            served = _SERVED.get(func)
            out = NotImplemented if served is None else served(run, func, args, kwargs)
            if out is NotImplemented:
                Count.used = Count.used or _has_counts(args)
                out = func(*args, **kwargs)
                _check(func, args, kwargs, out)
            run.after(func, (args, kwargs), out)
        except Refused as error:
            raise run.refused(error) from None
        except (RuntimeError, IndexError) as error:
            rows = any(layout(each) is not PLAIN for each in tensors_in((args, kwargs)))
            if not run.partial or not rows:
                raise
            said = f"{getattr(func, '__name__', func)}: {str(error).splitlines()[0]}"
            raise run.refused(
                Refused(f"{said} (rows of a layer, or of this rank's part, with others?)")
            ) from error
        return out


# What tells nothing of the values and sizes of rows.
_FREE = {"dim", "ndim", "element_size", "itemsize", "get_device", "stride", "storage_offset", "output_nr"}
_FREE |= {"__hash__", "__repr__", "__format__", "_version", "layout", "dtype", "device", "grad_fn", "names"}
_FREE |= {"type", "register_hook", "_backward_hooks"}


def _check(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Refuse what tells a program values of this rank's rows, or makes tensors past `rules`."""
    if isinstance(out, Tensor):
        ok = known(out)
    elif getattr(func, "__name__", "") == "__set__":
        ok = func.__self__.__name__ not in ("data", "grad")
    else:
        ok = out is None or isinstance(out, (bool, str, torch.dtype, torch.device, torch.layout))
        ok = ok or (
            isinstance(out, (tuple, list)) and all(isinstance(each, Tensor) and known(each) for each in out)
        )
    if not ok and any(layout(each) is not PLAIN for each in tensors_in((args, kwargs))):
        name = getattr(func, "__name__", str(func))
        name = getattr(getattr(func, "__self__", None), "__name__", name) if name == "__get__" else name
        if name not in _FREE:
            raise Refused(f"{name}: takes values of this rank's rows out of torch")


# ---- sizes


_SERVED[Tensor.shape.__get__] = lambda run, func, args, kwargs: size_of(args[0])  # type: ignore[attr-defined]
_serves("numel nelement")(lambda run, func, args, kwargs: math.prod(size_of(args[0])))
_serves("__len__")(lambda run, func, args, kwargs: size_of(args[0])[0] if args[0].dim() else NotImplemented)


@_serves("size")
def _size(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    given = args[1] if len(args) > 1 else kwargs.get("dim")
    return size_of(args[0]) if given is None else size_of(args[0])[given]


def _local(value: Any) -> Any:
    """Return sizes with those of this rank's part in place of those of all ranks."""
    if isinstance(value, Count):
        return value.of.size
    if isinstance(value, (tuple, list)):
        return type(value)(map(_local, value)) if type(value) in (tuple, list) else tuple(map(_local, value))
    return value


def _sizes(args: Any, kwargs: Any) -> list[Any]:
    """Return the elements of a shape that is passed as a sequence, as numbers, or as ``size``."""
    given = kwargs.get("size", args[0] if args and isinstance(args[0], (tuple, list)) else args)
    return list(given)


def _has_counts(values: Iterable[Any]) -> bool:
    return any(isinstance(each, Count) for each in values)


@_serves("zeros ones empty full new_zeros new_ones new_empty new_full")
def _filled(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    name, first = func.__name__, int(func.__name__.startswith("new_"))
    given = args[first : first + 1] if name.endswith("full") else args[first:]
    sizes = _sizes(given, kwargs)
    if not _has_counts(sizes):
        run.note(f"{name} {[each for each in sizes if isinstance(each, int)]}")
        return NotImplemented
    fill = args[first + 1 :] if name.endswith("full") else ()
    if "size" in kwargs:
        kwargs = kwargs | {"size": _local(kwargs["size"])}
    if sum(isinstance(each, Count) for each in sizes) > 1:
        raise Refused(f"{name}: a value for all rows and all rows, of which this rank has a part")
    out = func(*args[:first], *_local(tuple(given)), *fill, **kwargs)
    return put(out, Layout(tuple(each.of if isinstance(each, Count) else None for each in sizes)))


@_serves("rand randn randint randperm normal")
def _random(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    if _has_counts([*args, *kwargs.values(), *_sizes(args, kwargs), *_sizes(args[-1:], {})]):
        raise Refused(
            f"{func.__name__}: draws for this rank's rows alone; F.dropout draws by numbers of nodes and edges"
        )
    return NotImplemented


@_serves("arange")
def _arange(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    given = [*args, *(kwargs[each] for each in ("start", "end", "step") if each in kwargs)]
    if not _has_counts(given):
        return NotImplemented
    count = next(each for each in given if isinstance(each, Count))
    whole = {name: each for name, each in kwargs.items() if name not in ("start", "end", "step")}
    if (
        [each for each in given if each is not count] not in ([], [0], [0, 1], [1])
        or given[0] == 1
        or not count.of.plain
    ):
        raise Refused("arange: numbers a part of the rows")
    with run.local():
        out = func(count.of.size, **whole)
    if out.is_floating_point():
        raise Refused("arange: numbers of rows, which are this rank's own, as values")
    return over(out, count.of.domain, 0, Numbers(count.of.domain))


@_serves("view reshape unflatten")
def _reshaped(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    sizes = _sizes(args[1:], kwargs)
    if -1 in sizes and any(isinstance(each, Count) and not each.of.size for each in sizes):
        # Where there are no rows, their number does not tell which size -1 is; that of all ranks does.
        rest = int(math.prod(each for each in sizes if each != -1))
        found = int(math.prod(size_of(args[0]))) // max(1, rest)
        sizes = [found if each == -1 and rest else each for each in sizes]
        args, kwargs = (args[0], sizes), {}
    out = func(args[0], *_local(tuple(args[1:])), **{name: _local(each) for name, each in kwargs.items()})
    place = divided(out)
    if place is not None and len(sizes) == out.dim() and type(sizes[place]) is int and sizes[place] == 1:
        # Of a rank's only row the shape does not tell which dimension is that of rows; the sizes do.
        rows = next((i for i, each in enumerate(sizes) if each == -1 or isinstance(each, Count)), place)
        low, high = sorted((place, rows))
        if set(out.shape[low : high + 1]) == {1}:
            entries = list(dims(out))
            entries[place], entries[rows] = entries[rows], entries[place]
            put(out, Layout(tuple(entries), layout(out).numbers))
    if run.partial and func.__name__ != "unflatten" and len(sizes) == out.dim():
        for size, entry in zip(sizes, dims(out), strict=True):
            if size != -1 and isinstance(size, Count) != (entry is not None):
                raise Refused(f"{func.__name__}: divides the rows of {entry or size.of} otherwise")
    return out


@_serves("expand broadcast_to expand_as")
def _expanded(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    if func.__name__ == "expand_as":
        other = args[1] if len(args) > 1 else kwargs["other"]
        entries, out = list(dims(other)), func(args[0], other)
    else:
        sizes = _sizes(args[1:], kwargs)
        out = func(args[0], *_local(tuple(args[1:])), **{name: _local(each) for name, each in kwargs.items()})
        entries = [each.of if isinstance(each, Count) else None for each in sizes]
    mine = dims(out)
    found = tuple(one or other for one, other in zip(mine, entries, strict=True))
    if sum(each is not None for each in found) > 1:
        raise Refused("expand: combines all rows with all rows, of which this rank has a part")
    return put(out, Layout(found, layout(out).numbers))


# ---- rows by numbers


def _in_halo(x: Tensor, dim: int, index: Any) -> bool:
    """Return whether rows of nodes are taken by numbers of which some are of the halo."""
    numbers = layout(index).numbers if isinstance(index, Tensor) else None
    entry = dims(x)[dim] if -x.dim() <= dim < x.dim() else None
    known_here = entry is not None and isinstance(numbers, Numbers) and entry.plain
    return known_here and numbers.halo and numbers.domain is entry.domain  # type: ignore[union-attr]


@_serves("index_select gather")
def _taken(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    x, dim, index, rest = _bound(args, kwargs, "dim", "index")
    if not _in_halo(x, dim, index):
        return NotImplemented
    return func(run.extended(x, dim % x.dim()), dim, index, **rest)


def _bound(args: Any, kwargs: Any, *names: str) -> list[Any]:
    """Return the first argument, further ones by name, and a dictionary of those left."""
    left = dict(kwargs)
    first = args[0] if args else left.pop("input", None)
    rest = args[1:] if args else ()
    found = [rest[i] if i < len(rest) else left.pop(name, None) for i, name in enumerate(names)]
    return [first, *found, left]


def _places(x: Tensor, key: Any) -> list[tuple[int, Tensor]]:
    """Return the tensors among the indices of x[key], with the dimensions that they index."""
    key = key if isinstance(key, tuple) else (key,)
    of_mask = [isinstance(each, Tensor) and each.dtype == torch.bool for each in key]
    wide = [
        each.dim() if mask else int(each is not None and each is not Ellipsis)
        for each, mask in zip(key, of_mask, strict=True)
    ]
    found, place = [], 0
    for each, taken in zip(key, wide, strict=True):
        if isinstance(each, Tensor):
            found.append((place, each))
        place += x.dim() - sum(wide) if each is Ellipsis else taken
    return found


@_serves("__getitem__")
def _item(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    x, key = args
    for dim, index in _places(x, key):
        if dim < x.dim() and _in_halo(x, dim, index):
            return func(run.extended(x, dim), key)
    return NotImplemented


@_serves("__setitem__")
def _set_item(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    x, key, value = args
    for dim, index in _places(x, key):
        if dim < x.dim() and _in_halo(x, dim, index):
            own = run.settled(index)
            whole = key if isinstance(key, tuple) else (key,)
            return func(x, tuple(own if each is index else each for each in whole), value)
    if (
        isinstance(key, Tensor)
        and isinstance(value, Tensor)
        and value.numel() == 1
        and divided(value) is not None
    ):
        x.index_put_((key,), value)  # torch would make a scalar of this rank's only row
        return None
    return NotImplemented


@_serves("scatter_add scatter_add_ index_add index_add_ scatter_reduce scatter_reduce_ scatter scatter_")
def _scattered(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    name = func.__name__
    source = "source" if name.startswith("index_") else "src"
    x, dim, index, src, rest = _bound(args[:4], kwargs, "dim", "index", source)
    reduce = args[4] if len(args) > 4 else kwargs.get("reduce")
    sums = name.startswith(("scatter_add", "index_add")) or reduce in ("sum", "add")
    sums = sums and rest.get("include_self", True) is True and len(args) < 6
    entry = dims(index)[dim if index.dim() == x.dim() else 0] if index.dim() else None
    more = args[4:]
    if rest.get("alpha", 1) != 1 or not isinstance(src, Tensor):
        return NotImplemented
    if _in_halo(x, dim, index):
        if not sums:
            return func(x, dim, run.settled(index), src, *more, **rest)
        with run.local():
            shape, entries = list(x.shape), list(dims(x))
            numbers: Any = layout(index).numbers
            beyond = numbers.domain.beyond
            shape[dim], entries[dim] = beyond.local, Divided(beyond)
            start = x.new_zeros(shape)
        put(start, Layout(tuple(entries)))
        total = run.folded(_sums(start, name, dim, index, src), dim % x.dim())
    elif entry and dims(x)[dim] is None and layout(index).numbers is None and sums:
        with run.local():  # into a table that is the same on all ranks
            part = _sums(torch.zeros_like(x), name, dim, index, src)
        total = run.summed(part)
    else:
        return NotImplemented
    with run.local():
        out = x.add_(total) if name.endswith("_") else x + total
    return out if name.endswith("_") else put(out, Layout(dims(x)))


def _sums(x: Tensor, name: str, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return x.index_add(dim, index, src) if name.startswith("index_") else x.scatter_add(dim, index, src)


# ---- reductions of all rows


def _over(x: Tensor, dim: Any) -> tuple[list[int], int] | None:
    """Return the dimensions of a reduction, and the number of values of all ranks; None unless one is divided."""
    place = divided(x)
    given = dim if isinstance(dim, (tuple, list)) else [] if dim is None else [dim]
    every = [each % max(1, x.dim()) for each in given] or list(range(x.dim()))
    if place is None or place not in every or layout(x).numbers is not None:
        return None
    return every, math.prod(size_of(x)[each] for each in every)


def _sum(run: Run, x: Tensor, over: list[int], keepdim: bool, dtype: Any = None) -> Tensor:
    return run.summed(x.sum(over, keepdim=keepdim, dtype=dtype))


def _most(run: Run, x: Tensor, over: list[int], keepdim: bool, least: bool = False) -> Tensor:
    """Return the largest values; gradients are shared by those that are equal, as by amax."""
    values = x.detach()
    if not values.numel():
        info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
        fill = math.inf if x.is_floating_point() else info.max
        shape = [1 if each in over else size for each, size in enumerate(x.shape)]
        values = values.new_full(shape, fill if least else -math.inf if fill == math.inf else info.min)
    found = run.most(values.amin(over, keepdim=True) if least else values.amax(over, keepdim=True), least)
    if x.requires_grad and torch.is_grad_enabled():
        equal = (x.detach() == found).to(x.dtype)
        count = _sum(run, equal, over, True)
        found = _sum(run, x * equal, over, True) / count
    return found if keepdim else found.squeeze(over)


@_reduces("sum mean amax amin max min any all")
def _reduced(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    name = func.__name__
    left = dict(kwargs)
    x = args[0] if args else left.pop("input", None)
    dim = args[1] if len(args) > 1 else left.pop("dim", left.pop("axis", None))
    keepdim = args[2] if len(args) > 2 else left.pop("keepdim", False)
    if not isinstance(x, Tensor) or isinstance(dim, (Tensor, bool)) or "other" in left or "out" in left:
        return NotImplemented
    if (found := _over(x, dim)) is None:
        return NotImplemented
    over, count = found
    if name in ("max", "min"):
        if dim is not None:
            raise Refused(
                f"{name}: gives the places of rows, of which each rank has a part; use a{name}(dim)"
            )
        over, keepdim = list(range(x.dim())), False
    if name == "any":
        return _sum(run, x.bool(), over, keepdim) > 0
    if name == "all":
        return _sum(run, ~x.bool(), over, keepdim) == 0
    if name in ("sum", "mean"):
        total = _sum(run, x, over, keepdim, left.get("dtype"))
        return total / count if name == "mean" else total
    return _most(run, x, over, keepdim, name in ("amin", "min"))


@_reduces("var std")
def _variance(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    x, dim, unbiased, keepdim, left = _bound(args, kwargs, "dim", "unbiased", "keepdim")
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if (found := _over(x, dim)) is None:
        return NotImplemented
    over, count = found
    correction = left.get("correction")
    correction = (0 if unbiased is False else 1) if correction is None else correction
    value = _squares(run, x, over, count)[1] / max(count - correction, 0)
    value = value if keepdim else value.squeeze(over)
    return _root(value) if func.__name__ == "std" else value


def _squares(run: Run, x: Tensor, over: list[int], count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, the sum of squares of what is left without it, and this; dimensions stay."""
    mean = _sum(run, x, over, True) / count
    centred = x - mean
    return mean, _sum(run, centred * centred, over, True), centred


def _root(value: Tensor) -> Tensor:
    """Return square roots, whose gradient at 0 is 0."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1).sqrt(), value)


@_reduces("norm vector_norm")
def _norm(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    order = "ord" if func in (torch.linalg.norm, torch.linalg.vector_norm) else "p"
    x, p, dim, keepdim, left = _bound(args, kwargs, order, "dim", "keepdim")
    if (found := _over(x, dim)) is None:
        return NotImplemented
    of_matrix = func is torch.linalg.norm and p is not None and len(found[0]) == 2
    if p not in (None, 2, 2.0, "fro", 1) or left.get("dtype") is not None or of_matrix:
        raise Refused(f"norm: of order {p} over all ranks' rows; known are 1 and 2")
    return _length(run, x, found[0], bool(keepdim), 2 if p != 1 else 1)


def _length(run: Run, x: Tensor, over: list[int], keepdim: bool, p: float = 2) -> Tensor:
    total = _sum(run, x.abs() if p == 1 else x * x, over, keepdim)
    return total if p == 1 else _root(total)


@_reduces("normalize")
def _normalize(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    x, p, dim, eps, left = _bound(args, kwargs, "p", "dim", "eps")
    found = _over(x, 1 if dim is None else dim)
    if found is None or left.get("out") is not None or p not in (None, 2, 2.0):
        return NotImplemented
    length = _length(run, x, found[0], True)
    return put(x / length.clamp_min(1e-12 if eps is None else eps), Layout(dims(x)))


@_reduces("softmax log_softmax")
def _softmax(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    x, dim, left = _bound(args, kwargs, "dim")
    if dim is None or (found := _over(x, dim)) is None:
        return NotImplemented
    if left.get("dtype") is not None:
        raise Refused(f"{func.__name__}: over all ranks' rows in another type; cast the rows before")
    ahead = x - _most(run, x.detach(), found[0], True)
    powers = ahead.exp()
    total = _sum(run, powers, found[0], True)
    return put(ahead - total.log() if func.__name__ == "log_softmax" else powers / total, Layout(dims(x)))


@_reduces("batch_norm")
def _batch_norm(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    if func is not F.batch_norm:
        return NotImplemented
    names = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    x, mean, var, weight, bias, training, momentum, eps, _ = _bound(args, kwargs, *names)
    if (found := _over(x, [each for each in range(x.dim()) if each != 1])) is None:
        return NotImplemented
    if not training:  # torch does another thing where there are no rows
        return put(func(*args, **kwargs), Layout(dims(x)))
    over, count = found
    if count < 2:
        raise ValueError(f"Expected more than 1 value per channel when training, got {count}")
    middle, squares, centred = _squares(run, x, over, count)
    with torch.no_grad():
        for running, value in ((mean, middle), (var, squares / (count - 1))):
            if running is not None:
                running.lerp_(value.view(-1).to(running.dtype), 0.1 if momentum is None else momentum)
    shape = [1, -1] + [1] * (x.dim() - 2)
    out = centred * (squares / count + (1e-5 if eps is None else eps)).rsqrt()
    out = out if weight is None else out * weight.view(shape)
    return put(out if bias is None else out + bias.view(shape), Layout(dims(x)))


# ---- others


@_serves("dropout dropout_")
def _dropout(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    named = ("p", "train" if func is not F.dropout else "training", "inplace")
    x, p, training, inplace, _ = _bound(args, kwargs, *named)
    training = True if training is None and func is F.dropout else training
    p = 0.5 if p is None else p
    if not training or divided(x) is None or not 0 < p < 1:
        return NotImplemented
    if run.draws is None:
        return x
    run.note(f"dropout of {p}")
    out = run.dropped(x, p)
    with run.local():
        return x.copy_(out) if inplace or func.__name__ == "dropout_" else put(out, Layout(dims(x)))


@_serves("one_hot")
def _one_hot(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    x, classes, _ = _bound(args, kwargs, "num_classes")
    if divided(x) is None or layout(x).numbers is not None:
        return NotImplemented
    if classes is None or classes < 1:
        raise Refused("one_hot: without num_classes it depends on all rows; give it")
    with run.local():
        out = (x[..., None] == torch.arange(classes, device=x.device)).long()
    return put(out, Layout((*dims(x), None)))


@_serves("register_hook")
def _hook(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    if layout(args[0]) is not PLAIN:
        raise Refused("register_hook: a hook would see gradients of this rank's rows alone")
    return NotImplemented
