"""Checks of values, a slice at a time.

Every function takes ``where`` (the file or graph that errors name), a slice of one dataset and the global
number of its first entry, and raises InputError that names the first wrong value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..errors import InputError
from .schema import MASKS, NAME_TEXT, PERMUTATION, Csr, Y


def first(bad: np.ndarray) -> int | None:
    """Return the position of the first True, None if there is none."""
    position = int(bad.argmax()) if bad.size else 0
    return position if bad.size and bad[position] else None


def offsets(where: str, path: str, indptr: np.ndarray, *, row: int, rows: int, total: int) -> None:
    """Check CSR offsets ``indptr`` [n+1] of rows ``row`` .. row+n-1 of ``rows``, over ``total`` stored entries."""
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
    """Check that a CSR's ids [k] (entries ``position`` and after) are in 0 .. limit-1; row_of: an entry's row."""
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
    place, value = f"row {row + at}", values[at]
    if bad.ndim == 2:
        column = first(bad[at]) or 0
        place, value = f"{place}, column {column}", values[at, column]
    raise InputError(f"{where}: /{path} has {value} at {place}; expected finite numbers")


def entries_finite(
    where: str, path: str, values: np.ndarray, *, position: int, row_of: Callable[[int], int]
) -> None:
    """Check that values of CSR entries, [k] or [k, ...] of entries ``position`` and after, are finite."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    bad = ~np.isfinite(flat)
    at = first(bad.any(axis=1))
    if at is not None:
        column = first(bad[at]) or 0
        place = f"entry {position + at}" + (f", column {column}" if values.ndim > 1 else "")
        raise InputError(
            f"{where}: /{path} has {flat[at, column]} in row {row_of(position + at)} ({place}); "
            "expected finite numbers"
        )


def labels(where: str, y: np.ndarray, row: int, classes: int) -> None:
    """Check class numbers int64 [n], -1 for none; or multi-label float32 [n, C] of 0 and 1."""
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
    """Check the train, val and test masks, bool [n] each: no row is in two of them, each masked row has a label."""
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
    """Check that original ids int64 [n] are in range (structure.py checks that each comes once)."""
    at = first(permutation.view(np.uint64) >= nodes)
    if at is not None:
        raise InputError(
            f"{where}: /{PERMUTATION} has {permutation[at]} in row {row + at}; expected 0 .. {nodes - 1}"
        )


def names(where: str, offsets: np.ndarray, text: np.ndarray, row: int) -> None:
    """Check that names are UTF-8. offsets: int64 [n+1], sound, of names ``row`` and after; text: uint8, of these."""
    starts = offsets[:-1][offsets[:-1] < offsets[1:]] - offsets[0]
    inner = text[starts] & 0xC0 == 0x80  # a byte within a letter
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
    """Check that row ranges int64 [P+1] start with 0, never decrease and end with the number of nodes."""
    at = first(values[1:] < values[:-1])
    if at is not None:
        raise InputError(
            f"{where}: /{path} decreases at part {at} (from {values[at]} to {values[at + 1]}); "
            "bounds never decrease"
        )
    if values[0] != 0 or values[-1] != nodes:
        raise InputError(f"{where}: /{path} goes from row {values[0]} to {values[-1]}; expected 0 to {nodes}")
