"""Files that ask for more than they hold: archives and pickles of strangers cost no more than a line.

Each test runs with little memory (`little_memory`), so that a claim that is believed is an error of another kind.
"""

from __future__ import annotations

import ast
import io
import os
import pickle
import re
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

import mgg_hpc
from mgg_hpc.data.readers import limits, pickles
from mgg_hpc.data.readers.node_arrays import node_rows
from mgg_hpc.data.readers.npy import MEMBERS
from mgg_hpc.data.readers.npz import read_npz
from mgg_hpc.data.readers.pickles import read_pickle
from mgg_hpc.data.readers.planetoid import _edges

from .graphs import little_memory, refused


@pytest.fixture(autouse=True)
def limited(monkeypatch):
    """Leave 1 GiB of address space, and say that the machine has 256 MiB of memory; an answer takes 20 s at most."""
    monkeypatch.setattr(limits, "memory", lambda: 256 << 20)
    began = time.monotonic()
    with little_memory():
        yield
    assert time.monotonic() - began < 20


def npy(descr: str, shape: str, data: bytes = b"", *, version: bytes = b"\1\0") -> bytes:
    """An array whose header says what it is told to."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode("latin1")
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


def test_what_is_no_array_file(tmp_path):
    """An array with a hole is not copied, a pipe not waited for."""
    with (tmp_path / "hole.npy").open("wb") as file:
        file.write(npy("'|b1'", f"({2**26}, 8)"))
        file.truncate(file.tell() + 2**29)
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    (tmp_path / "null.npy").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe.npy")
    too_large = r": a graph of 67108864 nodes needs 0\.5 GiB of memory, and this machine has 0\.2 GiB"
    for name in ("hole", "x", "null", "pipe"):
        reason = too_large if name == "hole" else " is not a NumPy array"
        with refused(rf"{name}\.npy{reason}"):
            node_rows(features=tmp_path / f"{name}.npy")


# --- archives


def npy_of_zeros(count: int) -> bytes:
    return npy("'|i1'", f"({count},)", bytes(count))


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return out.getvalue()


def changed(header: bytes, changes: dict[int, bytes], count: int = 100) -> bytes:
    """An archive of one array, in the first of whose entries some bytes are others."""
    data = bytearray(packed({"indptr.npy": npy_of_zeros(count)}))
    entry = data.find(header)
    for at, value in changes.items():
        data[entry + at : entry + at + len(value)] = value
    return bytes(data)


DIRECTORY, ENTRY, SIZE = b"PK\1\2", b"PK\3\4", 24  # where the directory has a member's size
MANY = {f"{number}.npy": b"" for number in range(MEMBERS + 1)}
ARCHIVES = {
    "more than deflate can hold": (
        changed(DIRECTORY, {SIZE: struct.pack("<I", 2**31)}),
        r": indptr claims 2147483648 bytes, packed in \d+; they hold \d+ at most",
    ),
    "less than it holds": (
        changed(DIRECTORY, {SIZE: struct.pack("<I", 300)}, count=1000),
        r": indptr .*(claims int8 \[1000\], which it does not hold|Bad CRC)",
    ),
    "encrypted": (changed(DIRECTORY, {8: b"\1"}), " is not a NumPy archive .*encrypted"),
    "a name in UTF-8": (changed(ENTRY, {7: b"\x08", 31: b"\xa8"}), " is not a NumPy archive .*utf-8"),
    "a place before its begin": (changed(b"PK\5\6", {16: b"\0\0\x10"}), "a member lies outside of it"),
    "bzip2": (packed({"indptr.npy": npy_of_zeros(9)}, zipfile.ZIP_BZIP2), "is packed by method 12; expected it stored"),
    "lzma": (packed({"indptr.npy": npy_of_zeros(9)}, zipfile.ZIP_LZMA), "is packed by method 14; expected it stored"),
    "many": (packed(MANY), " has 1001 members; expected the arrays of a graph, 1000 at most"),
    "one name": (packed(dict.fromkeys(("indptr", "indptr.npy"), npy_of_zeros(3))), " has two arrays of one name"),
    "other folders": (
        packed(dict.fromkeys(("../indptr.npy", "/etc/passwd", "a/../indptr.npy"), npy_of_zeros(3))),
        ": the array indptr is missing",
    ),
    "text": (b"text", " is not a NumPy archive"),
    "cut": (packed({"indptr.npy": npy_of_zeros(100)})[:-20], " is not a NumPy archive"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_claim_what_they_are_not(name, tmp_path):
    data, reason = ARCHIVES[name]
    (tmp_path / "g.npz").write_bytes(data)
    with refused(rf"g\.npz.*{reason}"):
        read_npz(tmp_path / "g.npz")
    assert [each.name for each in tmp_path.iterdir()] == ["g.npz"]


def test_an_archive_that_unpacks_to_more_than_memory(tmp_path, monkeypatch):
    """Each array would fit, all of them do not; nothing of the one that is too many is unpacked."""
    monkeypatch.setattr(limits, "memory", lambda: 10 << 20)
    members = {"indptr.npy": 1 << 19, "indices.npy": 6 << 20, "weight.npy": 6 << 20}
    data = packed({name: npy_of_zeros(count) for name, count in members.items()})
    assert len(data) < 20_000
    (tmp_path / "bomb.npz").write_bytes(data)
    with refused(r"bomb\.npz, unpacked, needs 0\.0 GiB of memory, and this machine has 0\.0 GiB"):
        read_npz(tmp_path / "bomb.npz")


# --- pickles


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
    "lists in lists": (b"\x80\x02" + b"]" * 9_000 + b"a" * 8_999 + b".", ""),
    "an object by name": (b"Pevil\n.", "it has the instruction PERSID"),
    "an object by its number": (b"\x80\x02\x82\x01.", "it has the instruction EXT1"),
    "an old instance": (b"(i__main__\nevil\n.", "it has the instruction INST"),
    "texts copied by calls": (
        b"\x80\x02c_codecs\nencode\nq\0X\0\0\x10\0" + b"a" * (1 << 20) + b"q\1X\6\0\0\0latin1q\2"
        + b"h\0h\1h\2\x86R" * 300 + b".", "its 300 calls may copy 1048576 bytes each",
    ),
    "one list in many places": (  # a file of 70 KB that lists 200 million neighbours
        b"\x80\x02}(K\0](" + b"K\1" * 10_000 + b"eq\1"
        + b"".join(b"M" + struct.pack("<H", n) + b"h\1" for n in range(1, 20_000)) + b"u.",
        "lists 200000000 neighbours, more than it has bytes",
    ),
    "objects": (pickle.dumps(np.array([{}], dtype=object), 2), "an array of type"),
    "records": (pickle.dumps(np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]), 2), "an array of type"),
    "texts": (pickle.dumps(np.array(["text"]), 2), "an array of type"),
    "a list of an array": (b"\x80\x02c__builtin__\nlist\nX\3\0\0\0abc\x85R.", "is damaged: TypeError"),
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_that_ask_for_more_than_they_hold(name, tmp_path):
    data, reason = PICKLES[name]
    path = tmp_path / "ind.x.graph"
    path.write_bytes(data)
    with refused(rf"ind\.x\.graph .*({reason})"):
        read_pickle(path)
        _edges(path, 20_000)


def test_a_pickle_of_many_instructions(tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "INSTRUCTIONS", 1000)
    (tmp_path / "p").write_bytes(b"\x80\x02" + b"}" * 1001 + b".")
    with refused("p is not a pickle of arrays: it has more than 1000 instructions"):
        read_pickle(tmp_path / "p")
    monkeypatch.setattr(pickles, "LARGEST", 1000)
    with refused("p is not a pickle of arrays: it has more than 0 MiB"):
        read_pickle(tmp_path / "p")


# --- nothing is evaluated

MODULES = r"(pickle|marshal|shelve|yaml|ast|dill)\.(loads?|open|literal_eval|safe_load)"
EVALUATE = re.compile(rf"eval|exec|compile|__import__|os\.(system|popen)|{MODULES}|np\.(loadtxt|genfromtxt)")


def test_no_text_is_evaluated():
    """Neither of files nor of the environment: no eval, no pickle but for Planetoid's, no shell, no YAML."""
    for path in Path(mgg_hpc.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call):
                assert not EVALUATE.fullmatch(ast.unparse(call.func)), (path, ast.unparse(call))
                loads = ast.unparse(call.func) == "torch.load"
                assert not loads or "weights_only=True" in ast.unparse(call), (path, ast.unparse(call))
                for option in call.keywords:
                    unsafe = option.arg in ("shell", "allow_pickle")
                    assert not unsafe or ast.unparse(option.value) == "False", (path, ast.unparse(call))
