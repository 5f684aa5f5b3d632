"""Operators of ApplyEdge: those that are computed column by column, and those that are functions of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import handle_torch_function, has_torch_function

from .expression import Expressions


def typed_linear(rows: Tensor, weight: Tensor, type: Tensor) -> Tensor:
    """Return out[e] = weight[type[e]] @ rows[e], [E, out]: a product with the matrix of each row's type.

    rows: [E, in]. weight: [T, out, in]. type: [E], integers from 0 to T - 1. (GG-NN: Li, Tarlow, Brockschmidt and
    Zemel, ICLR 2016.) Raises ValueError for shapes that do not fit.
    """
    if has_torch_function((rows, weight, type)):
        out: Tensor = handle_torch_function(typed_linear, (rows, weight, type), rows, weight, type)
        return out
    if weight.dim() != 3 or rows.dim() != 2 or rows.shape[1] != weight.shape[2] or type.dim() != 1:
        raise ValueError(
            f"typed_linear: rows {list(rows.shape)}, weight {list(weight.shape)} and type {list(type.shape)}; "
            "expected [E, in], [T, out, in] and [E]"
        )
    of_type = type.long()
    out = rows.new_zeros(len(rows), weight.shape[1])
    for t in range(len(weight)):
        chosen = (of_type == t).nonzero().reshape(-1)
        out = out.index_copy(0, chosen, torch.nn.functional.linear(rows[chosen], weight[t]))
    return out


def typed_rows(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the products of rows [n, in] with the matrices of all T types, concatenated: [n, T out]."""
    return torch.nn.functional.linear(rows, weight.reshape(-1, weight.shape[2]))


class NotByColumnError(Exception):
    """An operation that is not computed column by column; its text is the reason."""


Builder = Callable[..., int]  # (expressions, arguments) -> the number of the result's node


def _unary(op: str) -> Builder:
    return lambda of, x: of.unary(op, x)


def _binary(op: str) -> Builder:
    return lambda of, a, b: of.binary(op, a, b)


# Where values are equal, torch gives the derivative at a bound to clamp and elu, and none to relu.


def _relu(of: Expressions, x: int) -> int:
    return of.bounded("maximum", x, 0.0, passes=False)


def _elu(of: Expressions, x: int, alpha: float = 1.0) -> int:
    below = of.unary("exp", of.bounded("minimum", x, 0.0, passes=True))
    return of.binary("add", _relu(of, x), of.unary("mul_value", of.unary("add_value", below, -1), alpha))


def _softplus(of: Expressions, x: int, beta: int | None = None, threshold: int | None = None) -> int:
    if any(each is not None and of.value_of(each) != usual for each, usual in ((beta, 1), (threshold, 20))):
        raise NotByColumnError("softplus with a beta or threshold is not computed column by column")
    falling = of.unary("exp", of.unary("neg", of.unary("abs", x)))
    above = of.binary("maximum", x, of.constant(0))
    return of.binary("add", above, of.unary("log", of.unary("add_value", falling, 1)))


def _leaky_relu(of: Expressions, x: int, negative_slope: float = 0.01) -> int:
    return of.unary("leaky_relu", x, negative_slope)


def _rsqrt(of: Expressions, x: int) -> int:
    return of.unary("reciprocal", of.unary("sqrt", x))


def _square(of: Expressions, x: int) -> int:
    return of.binary("mul", x, x)


_POWERS: dict[float | None, Builder] = {
    1.0: lambda of, x: x,
    2.0: _square,
    3.0: lambda of, x: of.binary("mul", x, _square(of, x)),
    0.5: _unary("sqrt"),
    -0.5: _rsqrt,
    -1.0: _unary("reciprocal"),
    -2.0: lambda of, x: of.unary("reciprocal", _square(of, x)),
}


def _power(of: Expressions, x: int, exponent: int) -> int:
    known = of.value_of(exponent)
    if known not in _POWERS:
        raise NotByColumnError(
            "powers other than -2, -1, -0.5, 0.5, 1, 2 and 3 are not computed column by column"
        )
    return _POWERS[known](of, x)


def _clamp(of: Expressions, x: int, min: int | None = None, max: int | None = None) -> int:
    for op, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            value = of.value_of(bound)
            if value is None:
                raise NotByColumnError(
                    "clamp with bounds that are no numbers is not computed column by column"
                )
            x = of.bounded(op, x, value, passes=True)
    return x


# Builders of column programs, by the operator's name. Arguments are nodes; OPTIONS keep their values.
BY_COLUMN: dict[str, Builder] = {
    **{op: _unary(op) for op in ("neg", "exp", "log", "sqrt", "tanh", "sigmoid", "abs", "reciprocal")},
    **{op: _binary(op) for op in ("add", "sub", "mul", "div", "maximum", "minimum")},
    **{name: _binary(name[:3]) for name in ("subtract", "multiply", "divide")},
    "truediv": _binary("div"),
    "rsqrt": _rsqrt,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "silu": lambda of, x: of.binary("mul", x, of.unary("sigmoid", x)),
    "elu": _elu,
    "softplus": _softplus,
    "square": _square,
    "pow": _power,
    "clamp": _clamp,
    "identity": lambda of, x, *args, **options: x,
    "contiguous": lambda of, x, *args, **options: x,
}
OPTIONS = ("negative_slope", "alpha")  # keyword arguments that are numbers, not nodes

# Further operators of which each row of the result depends on one row of each operand.
PRODUCTS = {"linear", "matmul", "mm"}
BY_ROW = PRODUCTS | {"layer_norm", "rms_norm", "cat", "dropout"}  # dropout that drops nothing
ALONG_ROWS = {"softmax", "log_softmax", "sum", "mean", "norm"}  # over the last dimension
RESHAPES = {"unsqueeze", "getitem", "squeeze", "view", "reshape"}


def name_of(node: fx.Node) -> str:
    """Return the operator's name, the same for functions and methods."""
    name = str(getattr(node.target, "__name__", node.target))
    return name[2:-2] if name.startswith("__") else name


def takes_last(node: fx.Node) -> bool:
    """Return whether an operator goes over the last dimension, or one after that of edges."""
    at = 2 if name_of(node) == "norm" else 1  # after the norm's p
    dim = node.kwargs.get("dim", node.args[at] if len(node.args) > at else None)
    shape = node.all_input_nodes[0].meta["shape"]
    return shape is not None and len(shape) >= 2 and dim in (1, -1, (1,), (-1,), [1], [-1])


def keeps(node: fx.Node) -> bool:
    """Return whether a change of shape keeps the columns of each row, in their order."""
    before, after = node.args[0].meta["shape"], node.meta["shape"]  # type: ignore[union-attr]
    given: Any = [*node.args[1:], *node.kwargs.values()]
    index = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
    # No lists, no types.
    plain = all(part is None or part is ... or type(part) in (int, slice) for part in index)
    return plain and [size for size in before if size != 1] == [size for size in after if size != 1]
