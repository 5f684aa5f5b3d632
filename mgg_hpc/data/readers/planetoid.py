"""Planetoid's citation graphs (Yang, Cohen and Salakhutdinov, ICML '16): the files ind.<name>.*

``allx``, ``ally`` hold features and one-hot labels of the nodes 0 .. n-1, of which the first (``x``, ``y``) are for
training; ``tx``, ``ty`` hold features and labels of the nodes that ``test.index`` lists, one number a line; ``graph``
lists the neighbours of each node. Citeseer's test range has nodes that test.index leaves out: they get a row of zeros,
class 0 and no mask.
"""

from __future__ import annotations

import http.client
import itertools
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, shown
from ..graph import Graph, SparseRows, from_edges, masks
from .pickles import LARGEST, CsrParts, read_pickle

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
VALIDATION = 500
AUTHORS = (
    "https://raw.githubusercontent.com/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data"
)
TIMEOUT = 20.0  # seconds without a byte before a download fails
TEST_BYTES = 64  # most bytes of a line of test.index


def open_planetoid(source: Path, *, name: str | None = None, download: bool = False) -> Graph:
    """Read the files of a folder, or download them where the source is the word "planetoid".

    Args: name: the graph. [default: the only one in the folder]

    Raises InputError as `read_planetoid` and `download_planetoid` do, and where arguments are missing or too many.
    """
    if download:
        if name is None or str(source) != "planetoid":
            raise InputError("--download needs --name (cora, citeseer or pubmed) and no folder")
        return download_planetoid(name)
    if str(source) == "planetoid":
        raise InputError("planetoid needs the folder with ind.NAME.* files, or --download")
    if name is None:
        names = sorted(path.name[4:-6] for path in source.glob("ind.*.graph"))
        if len(names) != 1:
            found = f"has {', '.join(names)}: choose one with --name" if names else "has no ind.NAME.graph"
            raise InputError(f"{source} {found}")
        (name,) = names
    return read_planetoid(source, name)


def read_planetoid(folder: Path, name: str) -> Graph:
    """Read ``ind.<name>.*`` from a folder: an undirected graph with sparse features and the public split.

    Raises InputError for a file that is missing, is no pickle of arrays, or does not fit the others.
    """
    from scipy.sparse import csr_array, vstack

    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected the one with ind.{name}.x and its companions")
    files = {part: folder / f"ind.{name}.{part}" for part in PARTS}
    for path in files.values():
        if not path.is_file():
            raise InputError(f"{path} is missing; Planetoid's graphs are {len(PARTS)} files, ind.{name}.*")
    allx, tx = _csr(files["allx"]), _csr(files["tx"])
    if allx.shape[1] != tx.shape[1]:
        raise InputError(
            f"{files['tx']} has {tx.shape[1]} columns; expected {allx.shape[1]}, as ind.{name}.allx has"
        )
    ally, ty, trained = _one_hot(files["ally"]), _one_hot(files["ty"]), len(_one_hot(files["y"]))
    if ally.shape != (allx.shape[0], ty.shape[1]) or len(ty) != tx.shape[0] or trained > len(ally):
        raise InputError(f"{folder}: the files ind.{name}.* disagree about the number of nodes or classes")
    test = _test_index(files["test.index"], known=len(ally), count=len(ty))
    nodes = int(test.max(initial=len(ally) - 1)) + 1
    y = np.zeros(nodes, dtype=np.int64)
    y[: len(ally)] = ally.argmax(axis=1)
    y[test] = ty.argmax(axis=1)
    split = masks(nodes, [np.arange(trained), np.arange(trained, min(trained + VALIDATION, len(ally))), test])
    # Rows of allx, then each row of tx at the number of its test node; other nodes get the empty row at the end.
    row = np.full(nodes, allx.shape[0] + tx.shape[0])
    row[: allx.shape[0]] = np.arange(allx.shape[0])
    row[test] = allx.shape[0] + np.arange(tx.shape[0])
    x = vstack([allx, tx, csr_array((1, allx.shape[1]), dtype=np.float32)], format="csr")[row]
    sources, destinations = _edges(files["graph"], nodes)
    return from_edges(
        sources,
        destinations,
        nodes,
        name=name,
        symmetric=True,
        drop_self_loops=True,
        x=SparseRows(x.indptr.astype(np.int64), x.indices.astype(np.int32), x.data, x.shape),
        y=y,
        classes=ally.shape[1],
        **split,
    )


def download_planetoid(name: str, *, base: str = AUTHORS) -> Graph:
    """Download ``ind.<name>.*`` from the authors' repository, and read them.

    Raises InputError, naming the address, if it does not answer, has no such file, or sends too much.
    """
    if not name.replace("-", "").replace("_", "").isalnum():
        raise InputError(f"'{name}' is not the name of a Planetoid graph; cora, citeseer and pubmed are")
    with tempfile.TemporaryDirectory(prefix="mgg-planetoid-") as folder:
        for part in PARTS:
            file = f"ind.{name}.{part}"
            _fetch(f"{base.rstrip('/')}/{file}", Path(folder) / file)
        return read_planetoid(Path(folder), name)


def _fetch(address: str, path: Path) -> None:
    size = 0
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, path.open("wb") as file:
            while piece := answer.read(1 << 20):
                size += len(piece)
                if size > LARGEST:
                    raise InputError(f"{address} is larger than {LARGEST >> 20} MiB; not a Planetoid file")
                file.write(piece)
            expected = answer.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        raise InputError(f"{address} is not there: {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise InputError(
            f"{address} cannot be reached ({reason}); "
            "download the files ind.* elsewhere and import their folder"
        ) from error
    except ValueError as error:
        raise InputError(f"{address} is not an address: {error}") from error
    if expected is not None and expected.isdecimal() and expected.isascii() and int(expected[:30]) != size:
        raise InputError(f"{address} broke off after {size} of {expected} bytes; try again")


def _csr(path: Path) -> Any:
    """Read a pickled matrix, SciPy's CSR or dense, as a scipy.sparse.csr_array of float32, checked."""
    from scipy.sparse import csr_array

    found = read_pickle(path)
    if isinstance(found, np.ndarray) and found.ndim == 2:
        if not found.size:
            raise InputError(f"{path} holds a matrix without entries; expected features")
        return csr_array(found).astype(np.float32)
    if not isinstance(found, CsrParts):
        raise InputError(f"{path} holds a {type(found).__name__}; expected a matrix of features")
    shape, parts = found.shape, (found.data, found.indices, found.indptr)
    if not (isinstance(shape, tuple) and len(shape) == 2 and all(type(n) is int and n >= 0 for n in shape)):
        raise InputError(f"{path}: the matrix has no shape of two numbers")
    if shape[1] >= 2**31:
        raise InputError(f"{path}: the matrix has {shape[1]} columns; expected less than 2147483648")
    for each, kinds in zip(parts, ("if", "i", "i"), strict=True):
        if not isinstance(each, np.ndarray) or each.ndim != 1 or each.dtype.kind not in kinds:
            raise InputError(f"{path}: data, indices or indptr of the matrix is not an array of numbers")
    try:
        # csr_array.astype would sort the entries and sum duplicates, after which features are summed in another order.
        matrix = csr_array((found.data.astype(np.float32), *parts[1:]), shape=shape)
        matrix.check_format(full_check=True)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path} is damaged: the parts of the matrix do not fit together: {reason}"
        ) from error
    return matrix


def _one_hot(path: Path) -> np.ndarray:
    found = read_pickle(path)
    sound = isinstance(found, np.ndarray) and found.ndim == 2 and found.dtype.kind in "iufb" and found.size
    if not sound:
        raise InputError(f"{path} does not hold one-hot labels, a two-dimensional array of numbers")
    return found


def _test_index(path: Path, *, known: int, count: int) -> np.ndarray:
    """Read the test nodes int64 [count], each above the ``known`` ones, none twice."""
    if path.stat().st_size > TEST_BYTES * (count + 1):
        raise InputError(f"{path} is larger than a list of {count} numbers; expected one a line")
    lines = path.read_text(encoding="ascii", errors="replace").split()
    for number, word in enumerate(lines, start=1):
        if not (word.isdigit() and len(word) < 19 and known <= int(word) < known + 10 * (count + 1)):
            raise InputError(
                f"{path}:{number}: {shown(word)} is not a test node's number, {known} or a little more"
            )
    test = np.array(lines, dtype=np.int64)
    if len(test) != count or len(np.unique(test)) != count:
        raise InputError(f"{path} lists {len(np.unique(test))} nodes; expected {count}, one a row of tx")
    return test


def _edges(path: Path, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the neighbour lists: (sources, destinations) of all entries."""
    found = read_pickle(path)
    if not isinstance(found, dict) or not all(isinstance(row, list) for row in found.values()):
        raise InputError(f"{path} does not hold a dictionary of neighbour lists")
    lengths = np.array([len(row) for row in found.values()], dtype=np.int64)
    # A pickle can use one list many times, so that a small file lists more than fits any memory.
    if int(lengths.sum()) > path.stat().st_size:
        raise InputError(f"{path} lists {int(lengths.sum())} neighbours, more than it has bytes")
    for node in itertools.chain(found, itertools.chain.from_iterable(found.values())):
        if type(node) is not int or not -(2**63) <= node < 2**63:
            raise InputError(f"{path} lists a neighbour that is no node number: {shown(node)}")
    rows = np.array(list(found), dtype=np.int64)
    neighbours = np.fromiter(itertools.chain.from_iterable(found.values()), np.int64, int(lengths.sum()))
    for ids in (rows, neighbours):
        if len(ids) and (ids.min() < 0 or ids.max() >= nodes):
            raise InputError(f"{path} names a node outside 0 .. {nodes - 1}")
    return neighbours, np.repeat(rows, lengths)
