"""Column programs and their derivatives are torch's, for random programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import ELEMENTWISE

from mgg_hpc.nn.saga.expression import Expressions

COLUMNS = 5
FUNCTIONS = {
    **{name: getattr(torch, name) for name in ("exp", "log", "sqrt", "tanh", "sigmoid", "abs", "reciprocal")},
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "maximum", "minimum")},
    "neg": torch.neg,
}
VALUED = {
    "leaky_relu": lambda x, slope: torch.where(x > 0, x, slope * x),
    "add_value": torch.add,
    "mul_value": torch.mul,
}


def fits(op: str, *operands: torch.Tensor) -> bool:
    """Whether an operation stays away from poles, and from numbers that a sum would lose others in."""
    last = operands[-1].detach()
    if op in ("log", "sqrt"):
        return bool(last.min() > 0.1)
    if op in ("div", "reciprocal"):
        return bool(last.abs().min() > 0.1)
    return all(bool(each.detach().abs().max() < 4) for each in operands)


def drawn(rng, of: Expressions, operations: int) -> list[tuple[int, torch.Tensor]]:
    """Return the nodes of a random program, the first four of which are its operands, and their values."""
    made = []
    for index, (op, wide) in enumerate((("src", True), ("dst", True), ("edge", False), ("shared", True))):
        value = torch.from_numpy(rng.uniform(-2, 2, COLUMNS if wide else 1)).requires_grad_()
        made.append((of.operand(op, index, wide=wide), value))
    made.append((of.constant(0.75), torch.tensor([0.75], dtype=torch.float64)))
    while len(made) < 5 + operations:
        op = rng.choice([*FUNCTIONS, *VALUED, "column_sum"])
        (x, a), (y, b) = (made[at] for at in rng.integers(len(made), size=2))
        if op in ("add", "sub", "mul", "div", "maximum", "minimum"):
            if fits(op, a, b):
                made.append((of.binary(op, x, y), FUNCTIONS[op](a, b)))
        elif op == "column_sum":
            if of.nodes[x].wide:
                made.append((of.column_sum(x), a.sum(0, keepdim=True)))
        elif fits(op, a):
            value = float(rng.choice([0.0, 1.0, -0.5]))
            given = (value,) if op in VALUED else ()
            made.append((of.unary(op, x, value), (FUNCTIONS | VALUED)[op](a, *given)))
    # Zero times a wide value is a constant, which is narrow.
    return [
        (number, value[:1] if len(value) > 1 and not of.nodes[number].wide else value)
        for number, value in made
    ]


def computed(of: Expressions, known: dict[int, np.ndarray], numbers: list[int]) -> list[np.ndarray]:
    """Return the values of nodes, given those of operands."""
    values = dict(known)
    for number in of.needed(numbers):
        node = of.nodes[number]
        arguments = [values[each] for each in node.args]
        if node.op == "const":
            values[number] = np.array([node.value])
        elif node.op == "splat":
            values[number] = np.repeat(arguments[0], COLUMNS)
        elif node.op == "column_sum":
            values[number] = np.broadcast_to(arguments[0], COLUMNS).sum(keepdims=True)
        elif node.op in ELEMENTWISE:
            values[number] = ELEMENTWISE[node.op](*arguments, node.value)
        assert node.wide or len(values[number]) == 1
    return [values[each] for each in numbers]


@pytest.mark.parametrize("operations", [1, 2, 4, 10])
def test_random_programs_and_their_gradients_are_torchs(rng, operations):
    for _ in range(60):
        of = Expressions()
        made = drawn(rng, of, operations)
        output, value = made[-1]
        seed = of.operand("edge", 9, wide=of.nodes[output].wide)
        given = rng.standard_normal(COLUMNS if of.nodes[output].wide else 1)
        operands = dict(made[:4])
        known = {number: each.detach().numpy() for number, each in operands.items()} | {seed: given}
        found, *gradients = computed(of, known, [output, *of.gradients(output, seed, list(operands))])
        np.testing.assert_allclose(found, value.detach().numpy(), rtol=1e-9, atol=1e-9)
        if not value.requires_grad:
            continue
        seeds = torch.from_numpy(given).expand(value.shape)
        wanted = torch.autograd.grad(value, list(operands.values()), seeds, materialize_grads=True)
        for mine, theirs in zip(gradients, wanted, strict=True):
            scale = float(theirs.abs().max())
            np.testing.assert_allclose(
                np.broadcast_to(mine, theirs.shape), theirs, rtol=1e-9, atol=1e-9 * (1 + scale)
            )
