"""Read Python 2 pickles of NumPy arrays and SciPy matrices without running code that they name.

A pickle names the classes and functions to call. This reader knows the few that containers of numbers
need, replaces most of them by harmless functions of its own, and refuses every other by name.
"""

from __future__ import annotations

import codecs
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError


class CsrParts:
    """Replaces SciPy's CSR matrix: keeps the arrays of its state and has no behaviour."""

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


def _empty_array(kind: Any, shape: Any, code: Any) -> np.ndarray:
    """Return an empty array, as NumPy's ``_reconstruct``; the pickled state sets its shape and bytes afterwards."""
    return np.empty(0, dtype=np.int8)


def _number_type(code: Any, *flags: Any) -> np.dtype:
    """Return a NumPy type; only of numbers."""
    dtype = np.dtype(code if isinstance(code, str) else "O")
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"an array of type {code!r}")
    return dtype


def _csr(kind: Any, base: Any, state: Any) -> CsrParts:
    """Return an object as Python 2's ``_reconstructor`` does; only CsrParts."""
    if kind is not CsrParts:
        raise pickle.UnpicklingError(f"an object of {kind!r}")
    return CsrParts()


def _encode(text: Any, encoding: Any) -> bytes:
    """Return bytes that Python 3 wrote for Python 2 as text in latin1."""
    if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
        raise pickle.UnpicklingError(f"text encoded as {encoding!r}")
    return codecs.encode(text, "latin1")


class _Function(tuple[Callable[..., Any]]):
    """A function that a pickle can call, but whose attributes it cannot set."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        return self[0](*arguments)


PLAIN = object()  # replaces names that are only passed on

KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): PLAIN,
    ("numpy", "dtype"): _Function((_number_type,)),
    ("collections", "defaultdict"): defaultdict,
    ("_codecs", "encode"): _Function((_encode,)),
    **{(module, "_reconstructor"): _Function((_csr,)) for module in ("copy_reg", "copyreg")},
    **{(module, "object"): PLAIN for module in ("__builtin__", "builtins")},
    **{(module, "list"): list for module in ("__builtin__", "builtins")},
    **{
        (f"numpy.{core}.multiarray", "_reconstruct"): _Function((_empty_array,)) for core in ("core", "_core")
    },
    **{(f"scipy.sparse.{module}", "csr_matrix"): CsrParts for module in ("csr", "_csr")},
}


class _Unpickler(pickle.Unpickler):
    """Knows the names in KNOWN and no others. None of them calls, imports or changes anything else.

    A pickle may also set the state of what it names. Of these, only objects can be changed: CsrParts' own
    ``__setstate__`` keeps the class from it, and the others have no attributes to set.
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
        with path.open("rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing") from error
    except pickle.UnpicklingError as error:
        raise InputError(f"{path} is not a pickle of arrays: {' '.join(str(error).split())}") from error
    except Exception as error:  # damaged bytes may raise anything on their way
        raise InputError(
            f"{path} is damaged: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
