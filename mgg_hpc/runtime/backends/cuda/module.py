"""The native module for GPUs, and whether there is a GPU for it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

from ....errors import InputError
from ....plan import cuda_grid
from ....plan.cuda_grid import Limits
from ....plan.layout import ARRIVAL, CHUNK, PUSH, SEGMENT, TIER
from ... import device


def load() -> Any:
    """Return the native module, checked to agree with this package.

    Raises InputError if it is not built, does not load, or was built from other sources; and without a driver.
    """
    # Where the package is installed beside NVSHMEM's wheel, the module finds it by itself.
    wheel = util.find_spec("nvidia.nvshmem") if util.find_spec("nvidia") else None
    try:
        for folder in (wheel.submodule_search_locations or []) if wheel else []:
            for library in sorted(Path(folder).glob("lib/libnvshmem_host.so.*")):
                ctypes.CDLL(str(library))
        from .... import _cuda
    except (ImportError, OSError) as error:
        if not device.has_driver():
            raise InputError(
                "no CUDA device (no NVIDIA driver): install the driver, start the container with its GPUs, or "
                'compute on CPUs (run.backend = "auto")'
            ) from error
        raise InputError(
            f"the native module mgg_hpc._cuda does not load ({error}); it is built where nvcc and NVSHMEM are: "
            "pip install nvidia-nvshmem-cu13, then install this package again"
        ) from error
    return checked(_cuda)


def checked(module: Any) -> Any:
    """Return a native module that agrees with this package. Raises InputError for one of another version."""
    same = module.ring_bytes(256, 2) == cuda_grid.ring_bytes(256, 2)
    same &= module.stage_bytes(256, 8, 2, 3, 4) == cuda_grid.stage_bytes(256, 8, 2, 3, 4)
    structs = [each.itemsize for each in (CHUNK, SEGMENT, PUSH, ARRIVAL, TIER)]
    if module.struct_sizes() != structs or not same:
        raise InputError("the native module mgg_hpc._cuda is of another version; install this package again")
    return module


@contextmanager
def as_input_error() -> Iterator[None]:
    """Turn errors of CUDA or NVSHMEM that do not start into InputErrors: their cause is the machine."""
    try:
        yield
    except RuntimeError as error:
        raise InputError(str(error).splitlines()[0]) from error


def need_device(module: Any) -> int:
    """Return the number of GPUs that this process sees. Raises InputError where there is none."""
    count, why = module.devices()
    if not count:
        raise InputError(f"no CUDA device ({why or 'none is visible'})")
    return count


def limits_of(module: Any) -> Limits:
    """Return the limits of the current GPU."""
    found = module.limits()
    return Limits(**{name: found[name] for name in Limits.__dataclass_fields__})
