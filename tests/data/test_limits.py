"""Files that ask for more than they hold: archives and pickles of strangers cost no more than a line.

Each test runs with little memory (`little_memory`), so that a claim that is believed is an error of another kind.
"""

from __future__ import annotations

import ast
import io
import os
import pickle
import resource
import struct
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mgg_hpc
from mgg_hpc.data.readers import limits
from mgg_hpc.data.readers.arrays.archive import MEMBERS
from mgg_hpc.data.readers.node_arrays import node_rows
from mgg_hpc.data.readers.npz import read_npz
from mgg_hpc.data.readers.pickles import read_pickle
from mgg_hpc.data.readers.planetoid import _csr, _edges, _test_index

from . import python2_pickle
from .graphs import refused


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """Leave 1 GiB of address space, and say that the machine has 256 MiB of memory; an answer takes 20 s at most."""
    monkeypatch.setattr(limits, "memory", lambda: 256 << 20)
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), before[1]))
    began = time.monotonic()
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.monotonic() - began < 20


def npy(
    descr: str, shape: str, data: bytes = b"", *, order: str = "False", version: bytes = b"\1\0"
) -> bytes:
    """An array whose header says what it is told to."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode("latin1")
    return b"\x93NUMPY" + version + struct.pack("<H" if version == b"\1\0" else "<I", len(text)) + text + data


HEADERS = {
    "a huge shape": (npy("'<i8'", f"({2**62},)"), r"claims int64 \[4611686018427387904\]"),
    "many dimensions": (npy("'<i8'", "(" + "9," * 40 + ")"), r"claims int64|is int64 \[9, 9, 9"),
    "a negative length": (npy("'<i8'", "(-1,)", bytes(64)), "its shape is"),
    "a shape of bools": (npy("'<i8'", "(True,)", bytes(64)), "its shape is"),
    "a length beyond int64": (npy("'<i8'", f"({2**70},)"), "its shape is"),
    "objects": (npy("'|O'", "(1,)", pickle.dumps([1])), r"object \[1\]; expected"),
    "records": (npy("[('a', '<i8'), ('b', 'O')]", "(1,)", bytes(16)), "expected"),
    "a type of no name": (npy("'evil'", "(1,)"), "is not a NumPy array"),
    "a call": (npy("__import__('os').abort()", "(1,)"), "is not a NumPy array"),
    "brackets without end": (npy("(" * 900, "(1,)"), "is not a NumPy array"),
    "signs without end": (npy("'<i8'", "-" * 900 + "1"), "is not a NumPy array"),
    "a long header": (npy("'<i8'", "(1," + " " * 60000 + ")"), "is not a NumPy array"),
    "an open text": (npy("'''", "(1,)"), "is not a NumPy array"),
    "a NUL": (npy("'<i8\0'", "(1,)"), "is not a NumPy array"),
    "another version": (npy("'<i8'", "(1,)", version=b"\7\0"), "is not a NumPy array"),
    "a header that is cut": (npy("'<i8'", "(1,)")[:30], "is not a NumPy array"),
}


@pytest.mark.parametrize("header", HEADERS)
def test_headers_of_arrays(header, tmp_path):
    """In .npy files, and as members of archives."""
    data, reason = HEADERS[header]
    (tmp_path / "x.npy").write_bytes(data)
    with refused(rf"x\.npy .*({reason})"):
        node_rows(features=tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
        archive.writestr("indptr.npy", data)
    with refused(rf"g\.npz: indptr .*({reason})"):
        read_npz(tmp_path / "g.npz")


def test_an_array_with_a_hole_is_not_copied(tmp_path):
    with (tmp_path / "x.npy").open("wb") as file:
        file.write(npy("'|b1'", f"({2**26}, 8)"))
        file.truncate(file.tell() + 2**29)
    with refused(
        r"x\.npy: a graph of 67108864 nodes needs 0\.5 GiB of memory, and this machine has 0\.2 GiB"
    ):
        node_rows(features=tmp_path / "x.npy")


def test_what_is_no_array_file(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    (tmp_path / "null.npy").symlink_to("/dev/null")
    for path in (tmp_path / "x.npy", tmp_path / "null.npy"):
        with refused(f"{path} is not a NumPy array"):
            node_rows(features=path)
    os.mkfifo(tmp_path / "pipe.npy")
    with refused("pipe.npy is not a NumPy array"):
        node_rows(features=tmp_path / "pipe.npy")


# --- archives


def archive(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return path


def claiming(path: Path, name: bytes, size: int) -> Path:
    """Have the directory of an archive claim another size of a member."""
    data = bytearray(path.read_bytes())
    entry = data.rfind(b"PK\1\2", 0, data.rfind(name))
    data[entry + 24 : entry + 28] = struct.pack("<I", size)
    path.write_bytes(data)
    return path


def zeros(count: int) -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(count, np.int8))
    return out.getvalue()


def test_an_archive_that_unpacks_to_more_than_memory(tmp_path, monkeypatch):
    """Each array would fit, all of them do not; nothing of the one that is too many is unpacked."""
    monkeypatch.setattr(limits, "memory", lambda: 100 << 20)
    members = {"indptr.npy": zeros(4 << 20), "indices.npy": zeros(60 << 20), "weight.npy": zeros(60 << 20)}
    path = archive(tmp_path / "bomb.npz", members)
    assert path.stat().st_size < 200_000
    with refused(r"bomb\.npz, unpacked, needs 0\.1 GiB of memory, and this machine has 0\.1 GiB"):
        read_npz(path)


def test_a_member_that_claims_more_than_deflate_can_hold(tmp_path):
    path = claiming(archive(tmp_path / "g.npz", {"indptr.npy": zeros(100)}), b"indptr.npy", 2**31)
    with refused(r"g\.npz: indptr claims 2147483648 bytes, packed in \d+; they hold \d+ at most"):
        read_npz(path)


def test_a_member_that_claims_less_than_it_holds(tmp_path):
    path = claiming(archive(tmp_path / "g.npz", {"indptr.npy": zeros(1000)}), b"indptr.npy", 300)
    with refused(r"g\.npz: indptr .*(claims int8 \[1000\], which it does not hold|Bad CRC)"):
        read_npz(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_are_packed_as_numpy_does(method, tmp_path):
    path = archive(tmp_path / "g.npz", {"indptr.npy": zeros(100)}, method)
    with refused(rf"g\.npz: indptr is packed by method {method}; expected it stored or deflated"):
        read_npz(path)


def test_names_and_numbers_of_members(tmp_path):
    path = archive(tmp_path / "g.npz", {f"{number}.npy": b"" for number in range(MEMBERS + 1)})
    with refused(r"g\.npz has 1001 members; expected the arrays of a graph, 1000 at most"):
        read_npz(path)
    path = archive(tmp_path / "g.npz", {"indptr": zeros(3), "indptr.npy": zeros(3)})
    with refused(r"g\.npz has two arrays of one name"):
        read_npz(path)
    path = archive(
        tmp_path / "g.npz", {"../indptr.npy": zeros(3), "/etc/passwd": b"", "a/../indptr.npy": b""}
    )
    with refused(r"g\.npz: the array indptr is missing"):
        read_npz(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["g.npz"]


# --- pickles


def nested(count: int, kind: bytes) -> bytes:
    return b"\x80\x02" + kind * count


PICKLES = {
    "a place in the memo": (b"\x80\x02Nr\xff\xff\xff\x7f.", "it numbers an object 2147483647"),
    "a place as text": (b"Np2000000000\n.", "it numbers an object 2000000000"),
    "a place below 0": (b"Np-5\n.", "it numbers an object -5|is damaged"),
    "a text of 8 EiB": (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", "is damaged"),
    "bytes of 4 GiB": (b"\x80\x04B\xff\xff\xff\xff.", "is damaged"),
    "a frame of 8 EiB": (b"\x80\x04\x95" + b"\xff" * 7 + b"\x7fN.", "is damaged|would overflow"),
    "a long number": (b"\x80\x02\x8b\xff\xff\xff\x7f.", "is damaged"),
    "a number of many digits": (b"L" + b"9" * 100000 + b"L\n.", "is damaged"),
    "tuples in tuples": (b"\x80\x02}N" + b"\x85" * 3_000_000 + b"Ns.", "it has more than 1000 tuples"),
    "lists in lists": (nested(9_000, b"]") + b"a" * 8_999 + b".", ""),
    "an object by name": (b"Pevil\n.", "it has the instruction PERSID"),
    "an object by its number": (b"\x80\x02\x82\x01.", "it has the instruction EXT1"),
    "an old instance": (b"(i__main__\nevil\n.", "it has the instruction INST"),
    "texts copied by calls": (
        b"\x80\x02c_codecs\nencode\nq\0X\0\0\x10\0" + b"a" * (1 << 20) + b"q\1X\6\0\0\0latin1q\2"
        + b"h\0h\1h\2\x86R" * 300 + b".", "its 300 calls may copy 1048576 bytes each",
    ),
    "a list of an array": (b"\x80\x02c__builtin__\nlist\nX\3\0\0\0abc\x85R.", "is damaged: TypeError"),
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_that_ask_for_more_than_they_hold(name, tmp_path):
    data, reason = PICKLES[name]
    path = tmp_path / "ind.x.graph"
    path.write_bytes(data)
    with refused(rf"ind\.x\.graph .*({reason})"):
        read_pickle(path)
        _edges(path, 3)


def test_a_pickle_of_many_instructions(tmp_path, monkeypatch):
    from mgg_hpc.data.readers import pickles

    monkeypatch.setattr(pickles, "INSTRUCTIONS", 1000)
    (tmp_path / "p").write_bytes(nested(1001, b"}") + b".")
    with refused("p is not a pickle of arrays: it has more than 1000 instructions"):
        read_pickle(tmp_path / "p")
    monkeypatch.setattr(pickles, "LARGEST", 1000)
    with refused("p is not a pickle of arrays: it has more than 0 MiB"):
        read_pickle(tmp_path / "p")


def test_one_list_in_many_places(tmp_path):
    """A file of 70 KB that lists 200 million neighbours."""
    path = tmp_path / "ind.x.graph"
    row = b"K\1" * 10_000
    data = (
        b"\x80\x02}(K\0]("
        + row
        + b"eq\1"
        + b"".join(b"M" + struct.pack("<H", n) + b"h\1" for n in range(1, 20_000))
    )
    path.write_bytes(data + b"u.")
    with refused(r"ind\.x\.graph lists 200000000 neighbours, more than it has bytes"):
        _edges(path, 20_000)


def test_neighbours_that_are_no_numbers(tmp_path):
    path = tmp_path / "ind.x.graph"
    for content in (
        {(1, 2): [1]},
        {1: [[1, 2], [3, 4]]},
        {1: [1.5]},
        {1: [2**70]},
        {"1": [1]},
        {1: [None]},
        {True: [1]},
    ):
        path.write_bytes(pickle.dumps(content, protocol=2))
        with refused(r"ind\.x\.graph lists a neighbour that is no node number"):
            _edges(path, 5)


def test_matrices_that_claim_much(tmp_path):
    path = tmp_path / "ind.x.allx"
    path.write_bytes(python2_pickle.dumps(np.zeros((2**30, 0), np.int32)))
    with refused(r"ind\.x\.allx holds a matrix without entries"):
        _csr(path)


def test_numbers_of_test_nodes(tmp_path):
    path = tmp_path / "ind.x.test.index"
    for text, reason in [
        ("9" * 60, r":1: '9{39}\.\.\.' is not a test node's number"),
        ("1\n" * 5000, " is larger than a list of 2 numbers"),
    ]:
        path.write_text(text)
        with refused(rf"test\.index{reason}"):
            _test_index(path, known=1, count=2)


# --- nothing is evaluated

EVALUATE = {"eval", "exec", "compile", "__import__"}
RUN = {"system", "popen", "literal_eval", "loads", "load", "open", "safe_load"}
MODULES = {
    "os": {"system", "popen"},
    **dict.fromkeys(("pickle", "marshal", "shelve", "yaml", "ast", "dill"), RUN),
}


def called(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """The functions that a module calls, by their dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_no_text_is_evaluated():
    """Neither of files nor of the environment: no eval, no pickle but for Planetoid's, no shell, no YAML."""
    package = Path(mgg_hpc.__file__).parent
    for path in package.rglob("*.py"):
        name = str(path.relative_to(package))
        for function, call in called(path):
            module, _, last = function.rpartition(".")
            options = {each.arg: ast.unparse(each.value) for each in call.keywords}
            assert function not in EVALUATE, (name, function)
            assert last not in MODULES.get(module, ()), (name, function)
            assert options.get("shell", "False") == "False", (name, function)
            assert options.get("allow_pickle", "False") == "False", (name, function)
            assert function not in ("torch.load", "np.loadtxt", "np.genfromtxt"), (name, function)
