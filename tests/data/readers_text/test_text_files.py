"""Text files that are packed, damaged, or ask for more than they hold; one costs no more than a line of error."""

from __future__ import annotations

import gzip
import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
import zstandard

from data.graphs import refused
from mgg_hpc.data.readers import compressed, limits
from mgg_hpc.data.readers.compressed import text_blocks, text_lines
from mgg_hpc.data.readers.edge_list import open_edge_list
from mgg_hpc.data.readers.matrix_market import open_matrix_market
from mgg_hpc.data.readers.metis import open_metis

from .text_graphs import PACKINGS, blocks_of, joined, write


@pytest.fixture(autouse=True)
def little_memory():
    """Leave 1 GiB of address space, and no thread behind."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert not [each for each in threading.enumerate() if each.name.startswith("unpack")]


def read(path, **options):
    return joined(blocks_of(open_edge_list(path, **options)))


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("packing", PACKINGS)
def test_blocks_are_the_text_in_order(packing, words, rng, tmp_path, small_blocks):
    text = bytes(rng.choice(list(b"12345 \t\n"), size=2000).tolist()) + b"5\n"
    path = write(tmp_path / "t", text[:-1], packing)
    found = [(block.text.tobytes(), block.offset, block.line) for block in text_blocks(path, words=words)]
    whole = b"".join(each for each, _, _ in found)
    assert whole == text
    at = 0
    for each, offset, line in found:
        assert offset == at and line == 1 + text[:at].count(b"\n") and (words or each[-1:] == b"\n")
        rest = b"".join(
            block.text.tobytes() for block in text_blocks(path, offset=offset, line=line, words=words)
        )
        assert rest == whole[at:]
        at += len(each)
    assert [line for _, _, line in text_lines(path)] == [
        line.decode().strip() for line in text.split(b"\n")[:-1]
    ]


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
        (tmp_path / "e").write_bytes(data)
        assert read(tmp_path / "e") == ([1, 3, 1, 3], [2, 4, 2, 4], None)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_packed_files_that_are_damaged(kind, rng, tmp_path):
    text = b"".join(b"%d %d\n" % (u, v) for u, v in rng.integers(10**9, size=(3000, 2)).tolist())
    whole = (
        gzip.compress(text)
        if kind == "gzip"
        else zstandard.ZstdCompressor(write_checksum=True).compress(text)
    )
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 16
    for data in (whole[:-3], whole[: len(whole) // 2], bytes(flipped), whole + b"more", whole[:10]):
        (tmp_path / "e.txt").write_bytes(data)
        with refused(rf"e\.txt is damaged {kind}: .*, found at byte {len(data)}$"):
            read(tmp_path / "e.txt")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_packed_files_that_unpack_to_too_much(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "FREE", 1 << 20)
    path = write(tmp_path / "e.txt", b"#\n" * (20 << 20), kind)
    with refused(r"e\.txt unpacks to more than 250 times its size"):
        read(path)


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
def test_a_reader_that_stops_leaves_no_thread(packing, tmp_path, small_blocks):
    """Checked by `little_memory`."""
    path = write(tmp_path / "e.txt", b"".join(b"%d 1\n" % u for u in range(1_000_000)), packing)
    blocks = open_edge_list(path).edges.blocks()
    assert next(blocks).sources[0] == 0
    blocks.close()


@pytest.mark.slow
def test_progress_counts_the_bytes_of_the_file(rng, tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "BLOCK_BYTES", 1 << 16)
    text = b"".join(b"%d %d\n" % (u, v) for u, v in rng.integers(10**9, size=(300_000, 2)).tolist())
    for packing in PACKINGS:
        path, told = write(tmp_path / "e.txt", text, packing), []
        stream = open_edge_list(path).edges
        for _ in stream.blocks(progress=told.append):
            pass
        assert told == sorted(told) and len(set(told)) > 2
        assert told[-1] == stream.total == path.stat().st_size


def test_files_that_cannot_be_read(tmp_path):
    for name, content, reason in [
        ("none.txt", None, "cannot be read: No such file"),
        ("e.bz2", b"BZh91AY", "is packed by bzip2; expected text, plain or packed by gzip or zstd"),
        ("e.xz", b"\xfd7zXZ\0\0", "is packed by xz"),
        ("e.zip", b"PK\3\4abcd", "is packed by zip"),
    ]:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with refused(rf"{name} {reason}"):
            read(tmp_path / name)
    (tmp_path / "folder").mkdir()
    with refused("folder cannot be read: Is a directory"):
        read(tmp_path / "folder")


def test_a_pipe_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(
        target=lambda: (tmp_path / "pipe").write_bytes(gzip.compress(b"1 2\n" * 100_000))
    )
    writer.start()
    imported = open_edge_list(tmp_path / "pipe")
    assert imported.edges.total == 0
    assert sum(map(len, blocks_of(imported))) == 100_000
    writer.join()


@pytest.mark.parametrize("open_", [open_matrix_market, open_metis])
def test_a_pipe_is_not_read_twice(open_, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with refused("pipe is a pipe or a device, and a pipe cannot be read twice; give a file"):
        open_(tmp_path / "pipe")
    with refused("/dev/null is a pipe or a device"):
        open_(Path("/dev/null"))


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_byte_order_mark_is_passed_over(packing, tmp_path):
    for text in (b"1 2\n", b"# comment\n1 2\n"):
        assert read(write(tmp_path / "e.txt", b"\xef\xbb\xbf" + text, packing)) == ([1], [2], None)
        named = open_edge_list(tmp_path / "e.txt", ids="names")
        assert joined(blocks_of(named)) == ([0], [1], None)
    head = b"\xef\xbb\xbf%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 2\n"
    assert joined(blocks_of(open_matrix_market(write(tmp_path / "m.mtx", head, packing)))) == ([1], [0], None)


@pytest.mark.parametrize("packing", PACKINGS)
def test_carriage_returns_do_not_end_lines(packing, tmp_path, small_blocks):
    reason = r":9: a carriage return \(\\r\) with no newline"
    for line in (b"1 2\r3 4\n", b"1 2\r3 4", b"1\r2\n", b"# comment\r1 2\n", b"1 2\r\r\n"):
        path = write(tmp_path / "e.txt", b"1 2\r\n" * 8 + line, packing)
        for ids in ("numbers", "names"):
            with refused(rf"e\.txt{reason}"):
                read(path, ids=ids)
    graph = b"9 0\r\n" + b"\r\n" * 7 + b"% c\r\r\n\r\n\r\n"
    with refused(rf"g\.graph{reason}"):
        blocks_of(open_metis(write(tmp_path / "g.graph", graph, packing)))
    assert read(write(tmp_path / "e.txt", b"1 2\r\n3 4\r", packing)) == ([1, 3], [2, 4], None)


def test_nodes_that_do_not_fit_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "memory", lambda: 256 << 20)
    write(tmp_path / "e.txt", "0 1\n")
    with refused(r"e\.txt: a graph of 1000000000000 nodes needs 7,450\.6 GiB of memory"):
        open_edge_list(tmp_path / "e.txt", nodes=10**12)


def test_an_empty_list_has_no_blocks(tmp_path):
    for packing in PACKINGS:
        assert blocks_of(open_edge_list(write(tmp_path / "e.txt", "", packing))) == []
        assert blocks_of(open_edge_list(write(tmp_path / "e.txt", "# nothing\n\n", packing))) == []


BAD_LINES = {
    "NUL in an id": (b"0 1\0", r"'1\\x00' is not a node id"),
    "NUL in a weight": (b"0 1 5\0", r"'5\\x00' is not a weight"),
    "NUL alone": (b"\0\0\0\0", "1 columns|is not a node id"),
    "UTF-16": ("0 1\n".encode("utf-16"), "is not a node id"),
    "beyond int64": (b"0 9223372036854775808", "the node id 9223372036854775808 is too large"),
    "beyond int": (b"0 " + b"9" * 300, r"the node id 9{40}\.\.\.9 is too large"),
    "beyond what int() reads": (b"0 " + b"9" * 100000, "a node id of 100000 digits is too large"),
    "a long word": (b"0 " + b"x" * 100000, r"'x{39}\.\.\.' is not a node id"),
    "a long weight": (b"0 1 " + b"9" * 100000, r"the weight 9{39}.* is not finite|is not a weight"),
    "a negative zero": (b"0 --1", "'--1' is not a node id"),
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_lines_that_are_not_edges(line, tmp_path):
    data, reason = BAD_LINES[line]
    (tmp_path / "e.txt").write_bytes(data)
    with refused(rf"e\.txt:1: .*({reason})") as caught:
        read(tmp_path / "e.txt")
    assert len(str(caught.value)) < 200 + len(str(tmp_path))


def test_a_weight_of_many_digits(tmp_path):
    digits = "0." + "1" * 100_000
    assert read(write(tmp_path / "e.txt", f"0 1 {digits}\n"))[2] == [np.float32(1 / 9)]
