"""Operators of ApplyEdge: which of them are computed column by column, and which are functions of a row."""

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
    """Return the products of rows [n, in] with the matrices of all types, one beside the other: [n, T out]."""
    return torch.nn.functional.linear(rows, weight.reshape(-1, weight.shape[2]))


class NotByColumnError(Exception):
    """The reason why an operation is not computed column by column."""


Builder = Callable[..., int]


def _unary(op: str) -> Builder:
    return lambda of, x: of.unary(op, x)


def _binary(op: str) -> Builder:
    return lambda of, a, b: of.binary(op, a, b)


def _rsqrt(of: Expressions, x: int) -> int:
    return of.unary("reciprocal", of.unary("sqrt", x))


def _leaky_relu(of: Expressions, x: int, negative_slope: float = 0.01, inplace: bool = False) -> int:
    return of.unary("leaky_relu", x, negative_slope)


def _relu(of: Expressions, x: int, inplace: bool = False) -> int:
    return of.unary("leaky_relu", x, 0.0)


def _silu(of: Expressions, x: int, inplace: bool = False) -> int:
    return of.binary("mul", x, of.unary("sigmoid", x))


def _elu(of: Expressions, x: int, alpha: float = 1.0, inplace: bool = False) -> int:
    below = of.unary("exp", of.binary("minimum", x, of.constant(0)))
    return of.binary(
        "add", of.unary("leaky_relu", x, 0.0), of.unary("mul_value", of.unary("add_value", below, -1), alpha)
    )


def _softplus(of: Expressions, x: int) -> int:
    falling = of.unary("exp", of.unary("neg", of.unary("abs", x)))
    return of.binary(
        "add", of.unary("leaky_relu", x, 0.0), of.unary("log", of.unary("add_value", falling, 1))
    )


def _square(of: Expressions, x: int) -> int:
    return of.binary("mul", x, x)


def _power(of: Expressions, x: int, exponent: int) -> int:
    simple: dict[float | None, Callable[[], int]] = {
        1.0: lambda: x,
        2.0: lambda: _square(of, x),
        3.0: lambda: of.binary("mul", x, _square(of, x)),
        0.5: lambda: of.unary("sqrt", x),
        -0.5: lambda: _rsqrt(of, x),
        -1.0: lambda: of.unary("reciprocal", x),
        -2.0: lambda: of.unary("reciprocal", _square(of, x)),
    }
    known = of.value_of(exponent)
    if known not in simple:
        raise NotByColumnError(
            "powers other than -2, -1, -0.5, 0.5, 1, 2 and 3 are not computed column by column"
        )
    return simple[known]()


def _clamp(of: Expressions, x: int, min: int | None = None, max: int | None = None) -> int:
    x = x if min is None else of.binary("maximum", x, min)
    return x if max is None else of.binary("minimum", x, max)


def _same(of: Expressions, x: int, *args: Any, **options: Any) -> int:
    return x


# Builders of column programs, by the operator's name. Arguments are nodes; options keep their values.
BY_COLUMN: dict[str, Builder] = {
    "add": _binary("add"),
    "sub": _binary("sub"),
    "subtract": _binary("sub"),
    "mul": _binary("mul"),
    "multiply": _binary("mul"),
    "div": _binary("div"),
    "divide": _binary("div"),
    "truediv": _binary("div"),
    "maximum": _binary("maximum"),
    "minimum": _binary("minimum"),
    "neg": _unary("neg"),
    "exp": _unary("exp"),
    "log": _unary("log"),
    "sqrt": _unary("sqrt"),
    "rsqrt": _rsqrt,
    "tanh": _unary("tanh"),
    "sigmoid": _unary("sigmoid"),
    "abs": _unary("abs"),
    "reciprocal": _unary("reciprocal"),
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "silu": _silu,
    "elu": _elu,
    "softplus": _softplus,
    "square": _square,
    "pow": _power,
    "clamp": _clamp,
    "identity": _same,
    "contiguous": _same,
}
OPTIONS = {"negative_slope", "alpha", "inplace"}  # arguments that are numbers of the operator itself

# Operators of which each row of the result depends on one row of the operands alone, beside those by column.
PRODUCTS = {"linear", "matmul", "mm"}
BY_ROW = PRODUCTS | {"layernorm", "layer_norm", "cat", "rmsnorm"}
ALONG_ROWS = {"softmax", "log_softmax", "sum", "mean", "norm"}  # where they take the last dimension

_NAMES = {"leakyrelu": "leaky_relu"}


def name_of(node: fx.Node, root: torch.nn.Module) -> str:
    """Return the operator's name, the same for functions, methods and modules."""
    if node.op == "call_module":
        name = type(root.get_submodule(str(node.target))).__name__.lower()
        return _NAMES.get(name, name)
    if node.op == "call_method":
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def module_options(node: fx.Node, root: torch.nn.Module) -> dict[str, Any]:
    """Return the options of a module that are numbers of its operator."""
    if node.op != "call_module":
        return {}
    module = root.get_submodule(str(node.target))
    return {name: getattr(module, name) for name in ("negative_slope", "alpha") if hasattr(module, name)}
