"""Arrays that calls of the GPU's backend take: checked, and where they are."""

from __future__ import annotations

from typing import Any

from ....plan.layout import ROW_ALIGNMENT, RowFormat
from .device_arrays import DeviceArrays

DTYPES = ("float32", "float16", "bfloat16")


def name_of(format: RowFormat) -> str:
    """Return the name of the rows' type in the module. Raises ValueError for one that kernels do not take."""
    return checked_name(format.dtype.name)


def checked_name(dtype: str) -> str:
    """Return a type's name. Raises ValueError for a type that kernels do not take."""
    if dtype not in DTYPES:
        raise ValueError(f"GPU kernels take rows of {', '.join(DTYPES)}, and these are {dtype}")
    return dtype


def flat(memory: DeviceArrays, name: str, array: Any, count: int, dtype: str = "float32") -> int:
    """Return the address of contiguous values [count], or 0 for None. Raises ValueError for anything else."""
    if array is None:
        return 0
    kind, shape, strides = memory.kind(array)
    if kind != dtype or shape != (count,) or (count > 1 and strides != (1,)):
        raise ValueError(f"{name}: {kind} {list(shape)}; expected contiguous {dtype} [{count}]")
    return memory.address(array)


def edge_values(memory: DeviceArrays, name: str, array: Any, edges: int) -> tuple[int, int]:
    """Return the address of contiguous float32 edge values, [E] or [E, H], and H. Raises ValueError for others."""
    kind, shape, strides = memory.kind(array)
    heads = shape[1] if len(shape) == 2 else 1
    apart = (edges > 1 and strides[0] != heads) or (edges > 0 and heads > 1 and strides[1] != 1)
    if kind != "float32" or shape not in ((edges,), (edges, heads)) or heads < 1 or apart:
        raise ValueError(
            f"{name}: {kind} {list(shape)}; expected contiguous float32 [{edges}] or [{edges}, heads]"
        )
    return memory.address(array), heads


def padded_rows(memory: DeviceArrays, name: str, array: Any, count: int, format: RowFormat) -> int:
    """Return the address of padded rows. Raises ValueError for anything else."""
    kind, shape, strides = memory.kind(array)
    if kind != format.dtype.name or shape != (count, format.dim):
        raise ValueError(f"{name}: {kind} {list(shape)}; expected {format.dtype} [{count}, {format.dim}]")
    address = memory.address(array)
    inside = format.dim == 1 or strides[1] == 1
    if count and not (strides[0] == format.stride and inside and address % ROW_ALIGNMENT == 0):
        raise ValueError(
            f"{name}: rows {strides[0]} values apart, at address {address:#x}; expected {format.stride} apart, "
            f"from a multiple of {ROW_ALIGNMENT} bytes on"
        )
    return address


def rows_of(
    memory: DeviceArrays, name: str, array: Any, dtype: str, shape: tuple[int, ...]
) -> tuple[int, int]:
    """Return the address of rows [n, dim] that lie any number of values apart, and this number.

    Raises ValueError for anything else.
    """
    kind, found, strides = memory.kind(array)
    apart = len(shape) == 2 and shape[1] > 1 and shape[0] > 0 and strides[1] != 1
    if kind != dtype or found != shape or len(shape) != 2 or apart:
        raise ValueError(f"{name}: {kind} {list(found)}; expected rows of {dtype} {list(shape)}")
    return memory.address(array), strides[0]
