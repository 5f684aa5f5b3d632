"""The native module of CPUs, and draws of initial weights, which it computes for any backend."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ...errors import InputError
from ...plan.layout import CHUNK, SEGMENT, STEP


def load() -> Any:
    """Return the native module, checked to agree with this package about struct sizes.

    Raises InputError if it is not built, or was built from other sources.
    """
    try:
        from ... import _host
    except ImportError as error:
        raise InputError(
            f"the native module mgg_hpc._host does not load ({error}); install with `pip install .`"
        ) from error
    if _host.struct_sizes() != [CHUNK.itemsize, SEGMENT.itemsize, STEP.itemsize]:
        raise InputError(
            "the native module mgg_hpc._host is of another version; install again with `pip install .`"
        )
    try:
        _host.instruction_set()
    except ValueError as error:
        raise InputError(str(error)) from error
    return _host


def instruction_set() -> str:
    """Return the instruction set of the host's kernels, as "avx512"."""
    return str(load().instruction_set())


def uniform(out: NDArray[Any], low: float, high: float, seed: int, stream: int) -> None:
    """Fill ``out`` [n, F] with draws in [low, high) that depend only on (seed, stream, row, column).

    Initial weights are drawn here for any backend, so that they are the same on all of them.
    """
    load().uniform_rows(out, low, high, seed, stream)
