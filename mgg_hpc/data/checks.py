"""Checks of the values of a slice of a dataset.

Arguments that functions share: where, the name of the file or graph in messages; row or position, the number of the
slice's first row or entry; row_of, a function that returns the row of an entry. All raise InputError that names the
first wrong value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..errors import InputError
from .schema import MASKS, NAME_TEXT, PERMUTATION, Csr, Y


def first(bad: np.ndarray) -> int | None:
    """Return the index of the first True in bool [n], or None."""
    position = int(bad.argmax()) if bad.size else 0
    return position if bad.size and bad[position] else None


def offsets(where: str, path: str, indptr: np.ndarray, *, row: int, rows: int, total: int) -> None:
    """Check CSR offsets ``indptr`` [n + 1] of n of ``rows`` rows; ``total``: number of stored entries."""
    if row == 0 and indptr[0] != 0:
        raise InputError(f"{where}: /{path} starts with {indptr[0]}; expected 0")
    at = first(indptr[1:] < indptr[:-1])
    if at is not None:
        raise InputError(
            f"{where}: /{path} decreases at row {row + at} (from {indptr[at]} to {indptr[at + 1]}); "
            "offsets never decrease"
        )
    if row + len(indptr) - 1 == rows and indptr[-1] != total:
        raise InputError(f"{where}: /{path} ends with {indptr[-1]}; expected the {total} stored entries")
    if indptr[0] < 0 or indptr[-1] > total:
        at = first((indptr < 0) | (indptr > total)) or 0
        raise InputError(
            f"{where}: /{path} has {indptr[at]} at row {row + at}; "
            f"offsets are in 0 .. {total}, the number of stored entries"
        )


def ids(
    where: str, csr: Csr, values: np.ndarray, *, position: int, limit: int, row_of: Callable[[int], int]
) -> None:
    """Check that the ids of CSR entries, [k], are in 0 .. limit - 1."""
    # As unsigned numbers the negative ones are large: one comparison finds both kinds.
    at = first(values.view(f"u{values.itemsize}") >= limit)
    if at is not None:
        raise InputError(
            f"{where}: /{csr.indices} has {csr.kind} {values[at]} in row {row_of(position + at)} "
            f"(entry {position + at}); expected 0 .. {limit - 1}"
        )


def finite(where: str, path: str, values: np.ndarray, row: int) -> None:
    """Check that floats [n] or [n, F] are finite."""
    bad = ~np.isfinite(values)
    at = first(bad if bad.ndim == 1 else bad.any(axis=1))
    if at is None:
        return
    position, value = f"row {row + at}", values[at]
    if bad.ndim == 2:
        column = first(bad[at]) or 0
        position, value = f"{position}, column {column}", values[at, column]
    raise InputError(f"{where}: /{path} has {value} at {position}; expected finite numbers")


def entries_finite(
    where: str, path: str, values: np.ndarray, *, position: int, row_of: Callable[[int], int]
) -> None:
    """Check that the values of CSR entries, floats [k, ...], are finite."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    bad = ~np.isfinite(flat)
    at = first(bad.any(axis=1))
    if at is not None:
        column = first(bad[at]) or 0
        entry = f"entry {position + at}" + (f", column {column}" if values.ndim > 1 else "")
        raise InputError(
            f"{where}: /{path} has {flat[at, column]} in row {row_of(position + at)} ({entry}); "
            "expected finite numbers"
        )


def labels(where: str, y: np.ndarray, row: int, classes: int) -> None:
    """Check labels: int64 [n] in -1 .. classes - 1, or float32 [n, C] of 0 and 1 (multi-label)."""
    if y.ndim == 2:
        at = first(((y != 0) & (y != 1)).any(axis=1))
        if at is not None:
            value = y[at][(y[at] != 0) & (y[at] != 1)][0]
            raise InputError(f"{where}: /{Y} has {value} in row {row + at}; multi-label values are 0 or 1")
        return
    at = first((y < -1) | (y >= classes))
    if at is not None:
        raise InputError(
            f"{where}: /{Y} has label {y[at]} in row {row + at}; "
            f"expected 0 .. {classes - 1}, or -1 where unlabelled"
        )


def masks(where: str, split: tuple[np.ndarray, ...], y: np.ndarray | None, row: int) -> None:
    """Check that no row is in two of the train, val and test masks, bool [n], and that masked rows have a label."""
    raw = tuple(mask.view(np.uint8) for mask in split)
    for path, values in zip(MASKS, raw, strict=True):
        at = first(values > 1)
        if at is not None:
            raise InputError(f"{where}: /{path} has byte {values[at]} in row {row + at}; expected 0 or 1")
    at = first(raw[0] + raw[1] + raw[2] > 1)
    if at is not None:
        names = " and ".join(f"/{path}" for path, mask in zip(MASKS, split, strict=True) if mask[at])
        raise InputError(f"{where}: row {row + at} is in {names}; a row is in one mask at most")
    if y is None or y.ndim == 2:
        return
    at = first((y < 0) & (split[0] | split[1] | split[2]))
    if at is not None:
        name = next(path for path, mask in zip(MASKS, split, strict=True) if mask[at])
        raise InputError(
            f"{where}: row {row + at} is in /{name} and has no label; masks select labelled rows"
        )


def original_ids(where: str, permutation: np.ndarray, row: int, nodes: int) -> None:
    """Check that original ids, int64 [n], are in range. (`verify.check` finds duplicates.)"""
    at = first(permutation.view(np.uint64) >= nodes)
    if at is not None:
        raise InputError(
            f"{where}: /{PERMUTATION} has {permutation[at]} in row {row + at}; expected 0 .. {nodes - 1}"
        )


def names(where: str, offsets: np.ndarray, text: np.ndarray, row: int) -> None:
    """Check that names are UTF-8. offsets: int64 [n + 1], already checked; text: uint8, from offsets[0] on."""
    starts = offsets[:-1][offsets[:-1] < offsets[1:]] - offsets[0]
    inner = text[starts] & 0xC0 == 0x80  # continuation bytes
    if not inner.any():
        try:
            text.tobytes().decode("utf-8")
            return
        except UnicodeDecodeError as error:
            byte = error.start
    else:
        byte = int(starts[inner.argmax()])
    at = row + int(np.searchsorted(offsets - offsets[0], byte, side="right")) - 1
    raise InputError(f"{where}: /{NAME_TEXT} is not UTF-8 in row {at}")


def bounds(where: str, path: str, values: np.ndarray, nodes: int) -> None:
    """Check that row ranges, int64 [P + 1], start with 0, never decrease, and end with the number of nodes."""
    at = first(values[1:] < values[:-1])
    if at is not None:
        raise InputError(
            f"{where}: /{path} decreases at part {at} (from {values[at]} to {values[at + 1]}); "
            "bounds never decrease"
        )
    if values[0] != 0 or values[-1] != nodes:
        raise InputError(f"{where}: /{path} goes from row {values[0]} to {values[-1]}; expected 0 to {nodes}")
