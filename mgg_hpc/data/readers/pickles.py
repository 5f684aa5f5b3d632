"""Read Python 2 pickles of NumPy arrays and SciPy matrices without running code that they name.

A pickle names the classes and functions to call. This reader knows the few that containers of numbers
need, replaces most of them by harmless functions of its own, and refuses every other by name. Its
instructions are counted before they run: a few bytes could ask for any amount of memory, or for tuples so
deep that Python itself crashes on them.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, shown

PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".bin")


def refuse_pickle(path: Path) -> None:
    """Raise InputError for a file that by its name is a pickle, which runs the code that it names when it is read."""
    if path.suffix.lower() in PICKLED:
        raise InputError(
            f"{path} is a pickle by its name, which may run any code; if it comes from where you trust, convert it in "
            f'Python: mgg_hpc.save(torch.load("{path.name}", weights_only=False), "graph.h5")'
        )


class CsrParts:
    """The arrays of a pickled CSR matrix of SciPy, without its behaviour."""

    indptr: Any = None
    indices: Any = None
    data: Any = None
    shape: Any = None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("a CSR matrix without a dictionary of its arrays")
        for name in ("indptr", "indices", "data"):
            setattr(self, name, state.get(name))
        self.shape = state.get("_shape", state.get("shape"))


def _number_type(code: Any, *flags: Any) -> np.dtype:
    """Stand in for numpy.dtype. Raises UnpicklingError for a dtype other than bool, integers and floats."""
    dtype = np.dtype(code if isinstance(code, str) else "O")
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"an array of type {shown(code)}")
    return dtype


def _csr(kind: Any, base: Any, state: Any) -> CsrParts:
    """Stand in for Python 2's _reconstructor. Raises UnpicklingError for a class other than a CSR matrix."""
    if kind is not CsrParts:
        raise pickle.UnpicklingError(f"an object of {shown(kind)}")
    return CsrParts()


def _encode(text: Any, encoding: Any) -> bytes:
    """Stand in for codecs.encode, with which Python 3 pickles bytes for Python 2. Only latin1 is allowed."""
    if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
        raise pickle.UnpicklingError(f"text encoded as {shown(encoding)}")
    return text.encode("latin1")


class _Function(tuple[Callable[..., Any]]):
    """A function that a pickle can call, but whose attributes it cannot set."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        return self[0](*arguments)


PLAIN = object()  # replaces names that are only passed on
# A pickle may not copy anything into the list that is a dictionary's default, so the function takes no argument.
NEW_LIST = _Function((lambda: [],))
# Replaces NumPy's _reconstruct; the pickled state sets the array's shape and bytes afterwards.
NEW_ARRAY = _Function((lambda kind, shape, code: np.empty(0, dtype=np.int8),))

KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): PLAIN,
    ("numpy", "dtype"): _Function((_number_type,)),
    ("collections", "defaultdict"): defaultdict,
    ("_codecs", "encode"): _Function((_encode,)),
    **{(module, "_reconstructor"): _Function((_csr,)) for module in ("copy_reg", "copyreg")},
    **{(module, "object"): PLAIN for module in ("__builtin__", "builtins")},
    **{(module, "list"): NEW_LIST for module in ("__builtin__", "builtins")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): NEW_ARRAY for core in ("core", "_core")},
    **{(f"scipy.sparse.{module}", "csr_matrix"): CsrParts for module in ("csr", "_csr")},
}

# Instructions (pickletools has their meanings) of protocols 0 to 5 that name objects outside of the file, or that no
# pickle of arrays has.
REFUSED = {"PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "INST", "OBJ", "NEWOBJ_EX"}
REFUSED |= {"NEXT_BUFFER", "READONLY_BUFFER", "BYTEARRAY8", "EMPTY_SET", "ADDITEMS", "FROZENSET"}
MEMO = {"PUT", "BINPUT", "LONG_BINPUT"}
CALLS = {"REDUCE", "BUILD", "NEWOBJ"}
TUPLES = {"TUPLE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
LARGEST = 512 << 20  # bytes of a file
INSTRUCTIONS = 10_000_000  # most of one pickle; the neighbours of Planetoid's largest graph take 700,000
FEW = 1000  # most calls and tuples of one pickle; a matrix takes some 20 of each
LONGEST = 200  # characters of a reason
COPIES = 32  # times the file's size that calls may make of its texts


def _count(data: bytes) -> None:
    """Raise UnpicklingError for instructions that no pickle of arrays has, and for too many or large ones."""
    counts = {"instructions": 0, "calls": 0, "tuples": 0}
    longest = 0
    for code, argument, _ in pickletools.genops(data):
        counts["instructions"] += 1
        if code.name in CALLS:
            counts["calls"] += 1
        elif code.name in TUPLES:
            counts["tuples"] += 1
        elif code.name in MEMO:
            if not 0 <= int(argument or 0) <= max(FEW, len(data)):  # Python allocates as many entries
                raise pickle.UnpicklingError(f"it numbers an object {shown(argument)}")
        elif code.name in REFUSED:
            raise pickle.UnpicklingError(f"it has the instruction {code.name}")
        if isinstance(argument, str | bytes):
            longest = max(longest, len(argument))
        for what, most in (("instructions", INSTRUCTIONS), ("calls", FEW), ("tuples", FEW)):
            if counts[what] > most:
                raise pickle.UnpicklingError(f"it has more than {most} {what}")
    if counts["calls"] * longest > COPIES * len(data) + (1 << 20):
        raise pickle.UnpicklingError(f"its {counts['calls']} calls may copy {longest} bytes each")


class _Unpickler(pickle.Unpickler):
    """An unpickler that finds the names in KNOWN only. None of these calls, imports or changes anything else.

    A pickle may also set attributes of the objects that it names. Only those of the class CsrParts could be set,
    but its ``__setstate__`` is called instead, and fails for the class.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return KNOWN[module, name]


def read_pickle(path: Path) -> Any:
    """Return the content of a Python 2 pickle: arrays of numbers, CSR matrices (as CsrParts), lists, dictionaries.

    Raises InputError for anything else.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise pickle.UnpicklingError(f"it has more than {LARGEST >> 20} MiB")
        data = path.read_bytes()
        _count(data)
        return _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing") from error
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} is not a pickle of arrays: {' '.join(str(error).split())[:LONGEST]}"
        ) from error
    except Exception as error:  # damaged bytes may raise any exception
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}"
        raise InputError(f"{path} is damaged: {reason}; download it again") from error
