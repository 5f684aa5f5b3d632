"""Graph files: what is written is read, in slices, checked as it is read; or refused by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace

import h5py
import numpy as np
import pytest
import xxhash
from jobs import dense, python

from mgg_hpc.data import atomic_write, writer
from mgg_hpc.data.digest import BLOCK
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
}


@pytest.fixture(params=KINDS)
def graph(request, rng) -> Graph:
    return random_graph(rng, **KINDS[request.param])


def test_a_file_has_the_rows_and_the_facts_of_its_graph(graph, rng, path):
    write(path, graph)
    with open_graph(path) as opened:
        cuts = np.sort(rng.integers(graph.nodes + 1, size=2))
        for lo, hi in [(0, graph.nodes), (0, 0), (graph.nodes, graph.nodes), (*cuts.tolist(),), (3, 4)]:
            part = opened.slice(lo, hi)
            begin, end = graph.indptr[lo], graph.indptr[hi]
            assert same(part.indptr, graph.indptr[lo : hi + 1] - begin)
            assert same(part.indices, graph.indices[begin:end])
            assert same(part.weight, None if graph.weight is None else graph.weight[begin:end])
            if isinstance(graph.x, SparseRows):
                assert part.x.shape == (hi - lo, graph.features)
                assert part.x.indptr[0] == 0 and part.x.indptr[-1] == len(part.x.indices) == len(part.x.data)
                assert same(dense(part.x), dense(graph.x)[lo:hi])
            else:
                assert same(part.x, graph.x[lo:hi])
            for name in ("y", "train", "val", "test"):
                assert same(getattr(part, name), getattr(graph, name)[lo:hi])
            original = np.arange(graph.nodes) if graph.permutation is None else graph.permutation
            assert same(part.ids, original[lo:hi])
        assert same(opened.indptr(), graph.indptr)
        assert (opened.name, opened.nodes, opened.edges) == ("random", graph.nodes, graph.edges)
        assert (opened.features, opened.classes) == (graph.features, 5)
        assert (opened.directed, opened.multilabel) == (graph.directed, graph.multilabel)
        assert opened.sparse == isinstance(graph.x, SparseRows)
        assert (opened.has_x, opened.has_y, opened.has_masks) == (True, True, True)
        assert opened.weighted == (graph.weight is not None)
        assert opened.index_dtype == graph.indices.dtype
        assert opened.bounds(2) is None


def test_a_graph_of_edges_alone(path):
    write(path, Graph("bare", np.array([0, 0, 2]), np.array([0, 1], np.int32)))
    with open_graph(path) as opened:
        part = opened.slice(0, 2)
        assert (part.weight, part.x, part.y, part.train) == (None, None, None, None)
        assert (opened.features, opened.classes, opened.has_x, opened.has_masks) == (0, 0, False, False)
    verify(path)


def test_hdf5_sees_the_schema(graph, path):
    """h5py, which wrote none of the bytes, reads them; xxhash gives the digests."""
    write(path, graph)
    with h5py.File(path) as file:
        assert file.attrs["format"] == b"mgg-graph" and file.attrs["version"] == 2
        assert same(file["graph/indptr"][:], graph.indptr)
        assert same(file["node/train"][:], graph.train)
        if isinstance(graph.x, SparseRows):
            assert file["node/x"].attrs["shape"].tolist() == list(graph.x.shape)
            assert same(file["node/x/data"][:], graph.x.data)
        else:
            assert same(file["node/x"][:], graph.x)
        digests = file["digest/graph/indices"][:]
        assert digests.dtype == np.uint64
        assert digests.tolist() == [xxhash.xxh3_64_intdigest(graph.indices.tobytes())]


def test_text_lies_within_the_checksums(rng, path):
    """Strings of variable length would not: HDF5 loops for ever over a damaged heap of them."""
    write(path, random_graph(rng))
    write_bounds(path, 1, np.array([0, 40]), "edges", [200])
    with h5py.File(path) as file:
        texts = [file.attrs.get_id(name).dtype for name in ("format", "name", "uuid")]
        texts.append(file["partition/1"].attrs.get_id("method").dtype)
    assert [dtype.kind for dtype in texts] == ["S"] * 4


def test_a_digest_for_each_block_of_64_kib(large, path):
    data = large.x.tobytes()
    expected = [xxhash.xxh3_64_intdigest(data[at : at + 2**16]) for at in range(0, len(data), 2**16)]
    with h5py.File(path) as file:
        assert file.attrs["digest_block"] == 2**16
        assert file["digest/node/x"][:].tolist() == expected


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_do_not_say_it_have_digests_of_blocks_of_4_mib(large, path, version):
    """As all files of version 1; row ranges are added to them with the digests that they have."""
    with h5py.File(path, "r+") as file:
        del file.attrs["digest_block"]
        file.attrs["version"] = version
        for name in (
            "graph/indptr",
            "graph/indices",
            "node/x",
            "node/y",
            "node/train",
            "node/val",
            "node/test",
        ):
            data = file[name][:].tobytes()
            del file[f"digest/{name}"]
            file[f"digest/{name}"] = np.array(
                [xxhash.xxh3_64_intdigest(data[at : at + 2**22]) for at in range(0, len(data), 2**22)],
                np.uint64,
            )
    with open_graph(path) as opened:
        identity = opened.uuid
        assert same(opened.slice(7, 2990).x, large.x[7:2990])
    write_bounds(path, 2, np.array([0, 1000, 3001]), "edges", [1, 2])
    verify(path)
    flip_byte(path, "node/x", 2**22 + 8)
    with open_graph(path) as opened:
        assert opened.uuid == identity
        with refused("the digest of block 1 "):
            opened.slice(1100, 1101)


@pytest.mark.parametrize("block", [0, -1, 2**11, 2**16 + 1, 2**23, 2**62])
def test_blocks_of_digests_have_a_size_that_can_be(large, path, block):
    with h5py.File(path, "r+") as file:
        file.attrs["digest_block"] = block
    with refused("the attribute digest_block is .*; expected a power of two from 4,096 to 4,194,304"):
        open_graph(path)


def test_a_rank_reads_few_bytes_beside_its_slices(large, path, monkeypatch):
    """All that is read of the file, what it is opened with too, against the bytes of what is returned."""
    read, counts = [0], {"preadv": os.preadv, "pread": os.pread}

    def counted(name):
        def call(*arguments):
            found = counts[name](*arguments)
            read[0] += found if name == "preadv" else len(found)
            return found

        return call

    for name in counts:
        monkeypatch.setattr(os, name, counted(name))
    with open_graph(path) as opened:
        opening, parts = read[0], 7
        assert opening < 2**15
        for lo, hi in [(0, 1500), (1500, 3001), (40, 41), (700, 2900)]:
            read[0] = 0
            part = opened.slice(lo, hi)
            arrays = (part.indptr, part.indices, part.x, part.y, part.train, part.val, part.test)
            wanted = sum(array.nbytes for array in arrays)
            digests = 8 * (wanted / 2**16 + 2 * parts)
            assert wanted <= read[0] <= wanted + parts * 2 * 2**16 + digests


def test_arrays_that_are_not_contiguous_are_written(rng, tmp_path):
    graph = random_graph(rng)
    strided = np.asfortranarray(np.repeat(graph.x, 2, axis=0))[::2]
    write(tmp_path / "a.h5", graph)
    write(tmp_path / "b.h5", replace(graph, x=strided))
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_the_identity_follows_the_contents(rng, tmp_path):
    graph = random_graph(rng)
    identities = set()
    for number, changed in enumerate([{}, {}, {"name": "other"}, {"x": graph.x + 1}]):
        write(tmp_path / f"{number}.h5", replace(graph, **changed))
        with open_graph(tmp_path / f"{number}.h5") as opened:
            identities.add(opened.uuid)
    assert len(identities) == 3


def test_a_slice_checks_just_the_blocks_that_it_reads(large, path):
    flip_byte(path, "node/x", BLOCK + 8)  # the lowest bit of a number: only the digest can tell
    row = (BLOCK + 8) // (999 * 4)
    with open_graph(path) as opened:
        opened.slice(0, row - 10)
        opened.slice(3001 - 50, 3001)
        for lo, hi in [(row, row + 1), (row + 15, row + 16), (0, 3001)]:
            with refused(r"g\.h5: /node/x is damaged: the digest of block 1 "):
                opened.slice(lo, hi)
        opened.slice(0, row - 10)


@pytest.mark.parametrize("lo, hi", [(-1, 3), (3, 2), (0, 41)])
def test_rows_that_are_not_there(lo, hi, rng, path):
    write(path, random_graph(rng))
    with open_graph(path) as opened:
        for read in (opened.slice, lambda lo, hi: next(opened.feature_blocks(lo, hi, []))):
            with pytest.raises(ValueError, match="not within"):
                read(lo, hi)


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
    for path, reason in [
        (tmp_path / "none" / "g.h5", "none is not a folder"),
        (tmp_path / "file" / "g.h5", "file is not a folder"),
        (tmp_path / "pipe", "pipe is not a regular file"),
        (tmp_path, "is not a regular file"),
    ]:
        with refused(reason):
            write(path, graph, force=True)
    with refused("is not writable"):  # root may write anywhere but here
        write("/proc/g.h5", graph)
    assert leftovers(tmp_path) == ["file", "pipe"]


def test_an_unsound_graph_is_not_written(rng, tmp_path):
    graph = random_graph(rng)
    graph.x[3, 2] = np.inf
    with refused("graph 'random': /node/x has inf at row 3, column 2"):
        write(tmp_path / "g.h5", graph)
    assert leftovers(tmp_path) == []


def test_a_failure_half_way_leaves_the_old_file_alone(rng, path, monkeypatch):
    write(path, random_graph(rng))
    before = path.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(writer.GraphWriter, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path, random_graph(rng), force=True)
    with pytest.raises(KeyboardInterrupt):
        write_bounds(path, 1, np.array([0, 40]), "edges", [1])
    assert path.read_bytes() == before
    assert leftovers(path.parent) == ["g.h5"]


FILL_A_DEVICE = """
    set -e
    mount -t tmpfs -o size={size}k none {folder}
    cd {folder}
    cp {source} old.h5
    {fill}
    set +e
    {python} -m mgg_hpc generate rmat --scale 12 --features 16 -o new.h5
    echo code $?
    {python} -m mgg_hpc partition old.h5 -n 2 > /dev/null
    echo code $?
    cmp old.h5 {source} && ls -A
"""


def in_a_mount_namespace(script: str, require) -> subprocess.CompletedProcess:
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    mount = [*unshare, "mount", "-t", "tmpfs", "none", "/mnt"]
    able = shutil.which("unshare") and not subprocess.run(mount, capture_output=True, check=False).returncode
    require(bool(able), "mounting a tmpfs needs unshare, and root or user namespaces")
    return subprocess.run([*unshare, "bash", "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("fill", ["true", "dd if=/dev/zero of=full bs=1k 2> /dev/null || true"])
def test_a_full_device_is_one_line(fill, rng, tmp_path, require):
    """A real file system without room: for the data (it has a little left), and for anything at all."""
    source, folder = tmp_path / "source.h5", tmp_path / "small"
    folder.mkdir()
    write(source, random_graph(rng, nodes=3000))
    size = source.stat().st_size // 1024 + 200
    script = FILL_A_DEVICE.format(size=size, folder=folder, source=source, fill=fill, python=sys.executable)
    done = in_a_mount_namespace(textwrap.dedent(script), require)
    assert done.stdout.count("code 2") == 2, done
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "new.h5" in lines[0] or "up to 1 MiB on disk" in lines[0], lines
    assert "error: no space left on device for" in lines[1] and "old.h5" in lines[1], lines
    assert set(done.stdout.splitlines()[2:]) <= {"old.h5", "full"}


@pytest.mark.parametrize("limit", [0, 4096, 100_000])
def test_a_limit_on_file_sizes_is_one_line(limit, rng, tmp_path):
    """The same without a mount: RLIMIT_FSIZE stops writes at different stages."""
    script = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        from mgg_hpc.__main__ import main
        raise SystemExit(main(["generate", "rmat", "--scale", "12", "-o", {str(tmp_path / "g.h5")!r}]))
    """
    done = python("-c", textwrap.dedent(script))
    assert done.returncode == 2, done
    assert "no space left on device for" in done.stderr and len(done.stderr.splitlines()) == 1
    assert leftovers(tmp_path) == []


def test_hdf5_errors_of_a_full_device_are_told(rng, tmp_path, monkeypatch):
    """The reservation keeps HDF5 from a full device; where it cannot, HDF5's own words are understood."""

    def full(*_):
        raise RuntimeError("flush failed (file write failed: errno = 28, error message = 'No space left')")

    monkeypatch.setattr(writer, "_create", full)
    with refused("no space left on device"):
        write(tmp_path / "g.h5", random_graph(rng))
    other = RuntimeError("something else")
    monkeypatch.setattr(atomic_write, "_claim", lambda *_: (_ for _ in ()).throw(other))
    with pytest.raises(RuntimeError, match="something else"):
        write(tmp_path / "g.h5", random_graph(rng))
    assert leftovers(tmp_path) == []


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


def test_damaged_bounds_are_refused(rng, path):
    write(path, random_graph(rng))
    write_bounds(path, 2, np.array([0, 10, 40]), "edges", [5, 6])
    with h5py.File(path, "r+") as file:
        file["partition/2/bounds"][1] = 11
    with open_graph(path) as opened, refused("/partition/2/bounds is damaged"):
        opened.bounds(2)
