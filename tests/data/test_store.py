"""Graph files: what is written is read, in slices and blocks, checked as it is read; or refused by name."""

from __future__ import annotations

import itertools
import os
import re
import textwrap
from dataclasses import replace

import h5py
import numpy as np
import pytest
import xxhash
from jobs import dense, python

from mgg_hpc.data import schema, store
from mgg_hpc.data.digest import BLOCK, LARGE_BLOCK
from mgg_hpc.data.graph import Graph, SparseRows
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import write, write_bounds

from .graphs import flip_byte, random_graph, refused, same

KINDS = {
    "dense": {},
    "half precision": {"half": True},
    "sparse": {"sparse": True, "weighted": True},
    "multi-label": {"multilabel": True, "symmetric": False},
    "weighted, permuted": {"weighted": True, "permuted": True, "symmetric": False},
    "64-bit ids": {"wide_ids": True},
    "edges alone": {},
}


@pytest.fixture(params=KINDS)
def graph(request, rng) -> Graph:
    graph = random_graph(rng, **KINDS[request.param])
    return graph if request.param != "edges alone" else Graph("random", graph.indptr, graph.indices)


def test_a_file_has_the_rows_and_the_facts_of_its_graph(graph, rng, path):
    write(path, graph)
    original = np.arange(graph.nodes) if graph.permutation is None else graph.permutation
    with open_graph(path) as opened:
        cuts = np.sort(rng.integers(graph.nodes + 1, size=2))
        for lo, hi in [(0, graph.nodes), (0, 0), (graph.nodes, graph.nodes), (*cuts.tolist(),), (3, 4)]:
            part, edges = opened.slice(lo, hi), slice(graph.indptr[lo], graph.indptr[hi])
            assert same(part.indptr, graph.indptr[lo : hi + 1] - graph.indptr[lo])
            assert same(part.indices, graph.indices[edges])
            assert same(part.weight, None if graph.weight is None else graph.weight[edges])
            if isinstance(graph.x, SparseRows):
                assert part.x.shape == (hi - lo, graph.features)
                assert part.x.indptr[0] == 0 and part.x.indptr[-1] == len(part.x.indices) == len(part.x.data)
                assert same(dense(part.x), dense(graph.x)[lo:hi])
            for name in ("x", "y", "train", "val", "test")[isinstance(graph.x, SparseRows) :]:
                rows = getattr(graph, name)
                assert same(getattr(part, name), None if rows is None else rows[lo:hi])
            assert same(part.ids, original[lo:hi])
        assert same(opened.indptr(), graph.indptr)
        for name in ("name", "nodes", "edges", "features", "classes", "directed", "multilabel"):
            assert getattr(opened, name) == getattr(graph, name)
        assert opened.sparse == isinstance(graph.x, SparseRows)
        assert opened.has_x == opened.has_y == opened.has_masks == (graph.x is not None)
        assert opened.weighted == (graph.weight is not None)
        assert opened.index_dtype == graph.indices.dtype
        assert opened.bounds(2) is None
    verify(path)


def digests(array: np.ndarray, block: int) -> list[int]:
    data = array.tobytes()
    return [xxhash.xxh3_64_intdigest(data[at : at + block]) for at in range(0, len(data), block)]


def test_hdf5_sees_the_schema(graph, path):
    """h5py, which wrote none of the bytes, reads them; xxhash gives the digests."""
    write(path, graph)
    write_bounds(path, 1, np.array([0, 40]), "edges", [200])
    with h5py.File(path) as file:
        assert file.attrs["format"] == b"mgg-graph" and file.attrs["version"] == 2
        assert file.attrs["digest_block"] == 2**16
        for name, array in schema.arrays(graph).items():
            assert same(file[name][:], array), name
            assert file[f"digest/{name}"][:].tolist() == digests(array, 2**16)
        if isinstance(graph.x, SparseRows):
            assert file["node/x"].attrs["shape"].tolist() == list(graph.x.shape)
        # Strings of variable length would not lie within checksums: HDF5 loops for ever over a damaged heap of them.
        texts = [file.attrs.get_id(name).dtype for name in ("format", "name", "uuid")]
        texts.append(file["partition/1"].attrs.get_id("method").dtype)
        assert [dtype.kind for dtype in texts] == ["S"] * 4


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_do_not_say_it_have_digests_of_blocks_of_4_mib(large, path, version):
    """As all files of version 1; row ranges are added to them with the digests that they have.

    Version 1 has no data of edges: a group of that name is passed over.
    """
    graph = replace(large, edge={"number": np.arange(large.edges)})
    write(path, graph, force=True)
    with h5py.File(path, "r+") as file:
        assert file["digest/node/x"][:].tolist() == digests(large.x, 2**16)
        del file.attrs["digest_block"]
        file.attrs["version"] = version
        for name, array in schema.arrays(graph).items():
            del file[f"digest/{name}"]
            file[f"digest/{name}"] = np.array(digests(array, 2**22), np.uint64)
    with open_graph(path) as opened:
        identity = opened.uuid
        part = opened.slice(7, 2990)
        assert same(part.x, large.x[7:2990]) and same(part.y, large.y[7:2990])
        assert list(part.edge) == ["number"] * (version == 2)
    write_bounds(path, 2, np.array([0, 1000, 3001]), "edges", [1, 2])
    verify(path)
    flip_byte(path, "node/x", LARGE_BLOCK + 8)
    with open_graph(path) as opened:
        assert opened.uuid == identity
        with refused("the digest of block 1 "):
            opened.slice(1100, 1101)


# --- what is read of a file


@pytest.fixture
def asked(monkeypatch) -> list[tuple[int, int]]:
    """What is read of files from now on: (first byte, bytes), reads that follow on each other as one."""
    found: list[tuple[int, int]] = []

    def counted(read, count):
        def call(descriptor, what, offset):
            answer = read(descriptor, what, offset)
            if found and sum(found[-1]) == offset:
                found[-1] = (found[-1][0], found[-1][1] + count(answer))
            else:
                found.append((offset, count(answer)))
            return answer

        return call

    monkeypatch.setattr(store.os, "preadv", counted(os.preadv, int))
    monkeypatch.setattr(store.os, "pread", counted(os.pread, len))
    return found


def features_at(path) -> int:
    with h5py.File(path) as file:
        return file["node/x"].id.get_offset()


@pytest.mark.parametrize("half", [False, True])
def test_features_come_in_blocks_and_each_byte_once(half, rng, path, asked):
    """Into two arrays in turn; with them come the digest blocks that the first and the last row lie in, and no more."""
    graph = random_graph(rng, nodes=3001, edges=2000, features=1999 if half else 999, half=half)
    write(path, graph)
    total, row_bytes, start = graph.x.nbytes, graph.x.itemsize * graph.features, features_at(path)
    some = np.sort(rng.integers(3002, size=(4, 2))).tolist()
    with open_graph(path) as opened:
        assert opened.x_dtype == graph.x.dtype
        for lo, hi in [(0, 3001), (3001, 3001), (0, 1), (3000, 3001), *some]:
            arrays = [np.empty_like(graph.x[: rng.integers(1, 2000)]) for _ in range(2)]
            found, asked[:] = [], []
            for number, x in enumerate(opened.feature_blocks(lo, hi, itertools.cycle(arrays))):
                assert np.shares_memory(x, arrays[number % 2])
                found.append(x.copy())
            assert [len(x) for x in found[:-1]] == [len(arrays[i % 2]) for i in range(len(found) - 1)]
            assert same(np.concatenate([*found, graph.x[:0]]), graph.x[lo:hi])
            first, last = lo * row_bytes // BLOCK * BLOCK, min(-(-hi * row_bytes // BLOCK) * BLOCK, total)
            of_rows = [(at, count) for at, count in asked if start <= at < start + total]
            assert of_rows == ([] if lo == hi else [(start + first, last - first)])


def test_a_slice_without_dense_features_reads_none(rng, large, path, asked):
    flip_byte(path, "node/x", 99)
    start = features_at(path)
    with open_graph(path) as opened:
        asked.clear()
        part = opened.slice(5, 2000, dense=False)
        assert part.x is None and same(part.y, large.y[5:2000])
        assert all(at + count <= start or at >= start + large.x.nbytes for at, count in asked)
    sparse = random_graph(rng, sparse=True)
    write(path, sparse, force=True)
    with open_graph(path) as opened:
        assert opened.x_dtype is None
        assert same(dense(opened.slice(3, 20, dense=False).x), dense(sparse.x)[3:20])


def read_blocks(opened, lo, hi):
    into = np.empty((100, opened.features), opened.x_dtype)
    return sum(len(x) for x in opened.feature_blocks(lo, hi, itertools.repeat(into)))


def read_slice(opened, lo, hi):
    return len(opened.slice(lo, hi).x)


def test_just_the_blocks_that_are_read_are_checked(rng, large, path):
    """Damage is also named where it lies beside the rows, in a digest block that they share; values before digests."""
    row_bytes, size = 999 * 4, large.x.nbytes
    for at in (8, int(rng.integers(1 << 18, 1 << 19)) * 8, BLOCK - 4, BLOCK, 2 * BLOCK - 4, size - 4):
        flip_byte(path, "node/x", at)  # the lowest bit of a number: only the digest can tell
        block = at // BLOCK
        start, end = block * BLOCK, min((block + 1) * BLOCK, size)
        begin, last = -(-start // row_bytes), end // row_bytes - 1  # rows that lie wholly in the digest block
        said = f"digest of block {block} (entries {start // row_bytes} .. {(end - 1) // row_bytes}) differs;"
        with open_graph(path) as opened:
            for read in (read_slice, read_blocks):
                for lo, hi in [(0, 3001), (begin, begin + 1), (last, last + 1)]:
                    with refused(re.escape(f"g.h5: /node/x is damaged: the {said}")):
                        read(opened, lo, hi)
                for lo, hi in [(0, start // row_bytes), (-(-end // row_bytes), 3001)]:
                    assert read(opened, lo, hi) == hi - lo
        flip_byte(path, "node/x", at)
    for at in (8, BLOCK + 8):  # the first one is named
        flip_byte(path, "node/x", at)
        with open_graph(path) as opened:
            for read in (lambda: read_blocks(opened, 0, 3001), lambda: opened.check_digests("node/x")):
                with refused("the digest of block 0 "):
                    read()
    with h5py.File(path, "r+") as file:
        file["node/x"][1500, 7] = np.inf
    with open_graph(path) as opened:
        for read, lo, hi in [(read_blocks, 0, 3001), (read_slice, 1400, 1600)]:
            with refused("/node/x has inf at row 1500, column 7"):
                read(opened, lo, hi)
        assert read_blocks(opened, 2500, 3001) == 501


def test_a_file_that_becomes_shorter_is_named(large, path):
    with open_graph(path) as opened:
        os.truncate(path, features_at(path) + 5_000_000)
        with refused(r"g\.h5 is truncated at byte \d+; copy or import it again"):
            read_blocks(opened, 0, 3001)


@pytest.mark.parametrize("lo, hi", [(-1, 3), (3, 2), (0, 41)])
def test_rows_that_are_not_there(lo, hi, rng, path):
    write(path, random_graph(rng))
    with open_graph(path) as opened:
        for read in (read_slice, read_blocks):
            with pytest.raises(ValueError, match="not within"):
                read(opened, lo, hi)


# --- what is written, and where


def test_the_identity_follows_the_contents(rng, tmp_path):
    """Not how an array lies in memory."""
    graph = random_graph(rng)
    strided = np.asfortranarray(np.repeat(graph.x, 2, axis=0))[::2]
    identities = []
    for number, changed in enumerate([{}, {"x": strided}, {"name": "other"}, {"x": graph.x + 1}]):
        write(tmp_path / f"{number}.h5", replace(graph, **changed))
        with open_graph(tmp_path / f"{number}.h5") as opened:
            identities.append(opened.uuid)
    assert identities[0] == identities[1] and len(set(identities)) == 3
    assert (tmp_path / "0.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()


def leftovers(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_existing_file_stays_unless_forced(rng, path):
    first, second = random_graph(rng), random_graph(rng, nodes=7)
    write(path, first)
    before = path.read_bytes()
    with refused(r"g\.h5 exists; .*--force"):
        write(path, second)
    assert path.read_bytes() == before
    with open_graph(path) as still_open:
        write(path, second, force=True)
        assert still_open.slice(0, 40).indptr[-1] == first.edges  # goes on reading the file that it opened
    with open_graph(path) as opened:
        assert opened.nodes == 7
    assert leftovers(path.parent) == ["g.h5"]


def test_outputs_that_cannot_be_written(rng, tmp_path):
    graph = random_graph(rng)
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in [
        ("none/g.h5", "none is not a folder"),
        ("file/g.h5", "file is not a folder"),
        ("pipe", "pipe is not a regular file"),
        ("", "is not a regular file"),
        ("/proc/g.h5", "is not writable"),  # root may write anywhere but here
    ]:
        with refused(reason):
            write(tmp_path / name, graph, force=True)
    graph.x[3, 2] = np.inf
    with refused("graph 'random': /node/x has inf at row 3, column 2"):
        write(tmp_path / "g.h5", graph)
    assert leftovers(tmp_path) == ["file", "pipe"]


@pytest.mark.parametrize("limit", [0, 4096, 100_000])
def test_a_full_device_is_one_line_and_the_old_file_stays(limit, rng, path):
    """RLIMIT_FSIZE stops writes at different stages."""
    write(path, random_graph(rng, nodes=3000))
    before = path.read_bytes()
    for words in (
        ["generate", "rmat", "--scale", "12", "-o", "g.h5", "--force"],
        ["partition", "g.h5", "-n", "2"],
    ):
        script = f"""
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
            from mgg_hpc.__main__ import main
            raise SystemExit(main({words}))
        """
        done = python("-c", textwrap.dedent(script), folder=path.parent)
        assert done.returncode == 2, done
        assert "no space left on device for" in done.stderr and len(done.stderr.splitlines()) == 1
        assert leftovers(path.parent) == ["g.h5"] and path.read_bytes() == before


def test_bounds_are_added_and_replaced(rng, path):
    graph = random_graph(rng)
    write(path, graph)
    with open_graph(path) as opened:
        identity = opened.uuid
    write_bounds(path, 2, np.array([0, 10, 40]), "edges", [5, 6])
    write_bounds(path, 3, np.array([0, 0, 40, 40]), "edges", [1, 2, 3])
    write_bounds(path, 2, np.array([0, 11, 40]), "other", [7, 8])
    with open_graph(path) as opened:
        assert opened.bounds(2).tolist() == [0, 11, 40] and opened.bounds(3).tolist() == [0, 0, 40, 40]
        assert opened.bounds(4) is None
        assert opened.partitions == {2: ("other", [7, 8]), 3: ("edges", [1, 2, 3])}
        assert opened.uuid == identity
        assert same(opened.slice(0, 40).x, graph.x)
    verify(path)
    assert leftovers(path.parent) == ["g.h5"]
    with refused("/partition/2/bounds goes from row 0 to 39; expected 0 to 40"):
        write_bounds(path, 2, np.array([0, 11, 39]), "edges", [1, 1])
    for parts, bounds, counts in [(2, [0, 40], 2), (2, [0, 9, 20, 40], 2), (2, [0, 20, 40], 3)]:
        with pytest.raises(ValueError, match="2 parts have 3 bounds and 2 edge counts"):
            write_bounds(path, parts, np.array(bounds), "edges", [100] * counts)
    with h5py.File(path, "r+") as file:
        file["partition/2/bounds"][1] = 10
    with open_graph(path) as opened, refused("/partition/2/bounds is damaged"):
        opened.bounds(2)
