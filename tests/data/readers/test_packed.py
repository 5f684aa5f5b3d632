"""Packed files and archives that are damaged, or ask for more than they hold, cost no more than a line of error."""

from __future__ import annotations

import gzip
import os
import struct
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zstandard

from data.graphs import little_memory, random_graph, refused
from mgg_hpc.data.readers import compressed
from mgg_hpc.data.readers.compressed import head_lines, text_blocks
from mgg_hpc.data.readers.edge_list import open_edge_list
from mgg_hpc.data.readers.matrix_market import open_matrix_market
from mgg_hpc.data.readers.metis import open_metis
from mgg_hpc.data.readers.npz import open_npz
from mgg_hpc.errors import InputError

from .formats import PACKINGS, archive, edges_of, lists, read_all, write


@pytest.fixture(autouse=True)
def limited():
    """Leave 1 GiB of address space, and no thread behind."""
    with little_memory():
        yield
    for each in threading.enumerate():
        if each.name.startswith("unpack"):
            each.join(10)
            assert not each.is_alive()


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("packing", PACKINGS)
def test_blocks_are_the_text_in_order(packing, words, rng, tmp_path, small_blocks):
    text = bytes(rng.choice(list(b"12345 \t\n"), size=2000).tolist()) + b"5\n"
    path = write(tmp_path / "t", text[:-1], packing)
    at = 0
    for block in text_blocks(path, words=words):
        each = block.text.tobytes()
        assert each == text[at : at + len(each)] and (words or each[-1:] == b"\n")
        assert (block.offset, block.line) == (at, 1 + text[:at].count(b"\n"))
        rest = text_blocks(path, offset=block.offset, line=block.line, words=words)
        assert b"".join(further.text.tobytes() for further in rest) == text[at:]
        at += len(each)
    assert at == len(text)
    assert [line.encode() for _, _, line in head_lines(path)] == [line.strip() for line in text.splitlines()]


def test_how_a_file_is_packed_is_told_by_its_bytes(tmp_path):
    """Members and frames follow each other; padding and frames to skip are passed over."""
    text = b"1 2\n3 4\n"
    skipped = b"\x53\x2a\x4d\x18\3\0\0\0abc"
    for data in (
        text * 2,
        gzip.compress(text) * 2,
        gzip.compress(text) + bytes(100) + gzip.compress(text) + bytes(70_000),
        zstandard.compress(text) * 2,
        skipped + zstandard.compress(text) + skipped + zstandard.compress(text),
        zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(text * 2),
    ):
        assert lists(open_edge_list(write(tmp_path / "e", data))) == ([1, 3, 1, 3], [2, 4, 2, 4], None)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_packed_files_that_are_damaged(kind, rng, tmp_path):
    text = b"".join(b"%d %d\n" % (u, v) for u, v in rng.integers(10**9, size=(3000, 2)).tolist())
    pack = gzip.compress if kind == "gzip" else zstandard.ZstdCompressor(write_checksum=True).compress
    whole = pack(text)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 16
    for data in (whole[:-3], whole[: len(whole) // 2], bytes(flipped), whole + b"more", whole[:10]):
        with refused(rf"e\.txt is damaged {kind}: .*, found at byte \d+$") as error:
            lists(open_edge_list(write(tmp_path / "e.txt", data)))
        found = int(str(error.value).rsplit(" ", 1)[1])
        cut = data == whole[: len(data)]  # which is known only at the end
        assert found == len(data) if cut else found <= len(data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_packed_files_that_unpack_to_too_much(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "FREE", 1 << 20)
    path = write(tmp_path / "e.txt", b"#\n" * (20 << 20), kind)
    with refused(r"e\.txt unpacks to more than 250 times its size"):
        lists(open_edge_list(path))


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("start", [b"", b"0 1\n2 3\n"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_a_line_without_end(start, packing, words, tmp_path):
    path = write(tmp_path / "e.txt", start + b"1" * (12 << 20), packing)
    kind = "word" if words else "line"
    with refused(rf"e\.txt:{1 + start.count(bytes([10]))}: the {kind} is longer than 1048576 bytes"):
        for _ in text_blocks(path, words=words):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("packing", PACKINGS)
def test_progress_counts_the_bytes_of_the_file(packing, tmp_path, monkeypatch):
    """A reader that stops leaves no thread: see `little_memory`."""
    monkeypatch.setattr(compressed, "BLOCK_BYTES", 1 << 16)
    path, told = write(tmp_path / "e.txt", b"".join(b"%d 1\n" % u for u in range(500_000)), packing), []
    stream = open_edge_list(path).edges
    stopped = stream.blocks()
    assert next(stopped).sources[0] == 0
    stopped.close()
    for _ in stream.blocks(progress=told.append):
        pass
    assert told == sorted(told) and len(set(told)) > 2
    assert told[-1] == stream.total == path.stat().st_size


def test_a_pipe_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    content = gzip.compress(b"1 2\n" * 100_000)
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
    writer.start()
    imported = open_edge_list(tmp_path / "pipe")
    assert imported.edges.total == 0
    assert sum(map(len, imported.edges.blocks())) == 100_000
    writer.join()
    for open_ in (open_matrix_market, open_metis):  # which read twice
        with refused("pipe is a pipe or a device, and a pipe cannot be read twice; give a file"):
            open_(tmp_path / "pipe")
        with refused("/dev/null is a pipe or a device"):
            open_(Path("/dev/null"))


# --- archives


def test_damage_within_packed_data_is_found(rng, tmp_path):
    """In members that are unpacked in several steps."""
    path, said = tmp_path / "g.npz", ""
    archive(path, random_graph(rng, nodes=3000, edges=20_000))
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as packed:
        members = {info.filename: (info.header_offset, info.compress_size) for info in packed.infolist()}
    for trial in range(80):
        data, (at, size) = bytearray(whole), members[str(rng.choice(["indices.npy", "x.npy", "y.npy"]))]
        if trial:
            data[at + size // 2 + int(rng.integers(size // 4))] ^= int(rng.integers(1, 256))
        else:  # a block of a type that deflate has not
            data[at + 30 + sum(struct.unpack_from("<HH", whole, at + 26))] |= 0b110
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"g\.npz") as caught:
            read_all(open_npz(path))
        said += str(caught.value)
    assert "while decompressing" in said


def test_a_member_that_ends_early_is_truncated(rng, tmp_path):
    """Its checksum is right, and the directory claims the length that its array needs."""
    path, short = tmp_path / "g.npz", np.zeros(100, np.int32)
    archive(path, random_graph(rng, symmetric=False), indices=short)
    with zipfile.ZipFile(path) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    members["indices.npy"] = members["indices.npy"].replace(b"(100,)", b"(200,)")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    data = bytearray(path.read_bytes())
    entry = data.rfind(b"PK\1\2", 0, data.rfind(b"indices.npy"))
    data[entry + 24 : entry + 28] = struct.pack("<I", len(members["indices.npy"]) + short.nbytes)
    path.write_bytes(data)
    with refused(r"g\.npz: indices is truncated"):
        edges_of(open_npz(path))
