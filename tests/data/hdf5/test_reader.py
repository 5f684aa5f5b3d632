"""The reader of HDF5 structures finds what the HDF5 library wrote, in every version of the format."""

from __future__ import annotations

import h5py
import numpy as np
import programs
import pytest

from mgg_hpc.data import header
from mgg_hpc.data.hdf5.objects import Object
from mgg_hpc.data.hdf5.source import DamagedError, Source, checksum
from mgg_hpc.data.store import open_graph

from .mutants import Originals
from .structures import lookup3

VERSIONS = ["earliest", ("v108", "v108"), ("v110", "v110"), "latest"]
TYPES = ["<i1", "<i2", "<i4", ">i8", "<u8", "<u4", "<f2", ">f4", "<f8", "S7", "?", "<c8", "V5", "i4,f8"]


def root_of(path) -> Object:
    source = Source(header.open_file(path))
    return Object(source, source.root, "/")


def compare(found: Object, item: h5py.Group) -> int:
    """Compare everything that lies below, and return the number of objects."""
    assert found.links.keys() == set(item)
    for name, value in found.attributes.items():
        expected = item.attrs[name]
        if isinstance(expected, str | bytes):
            text = expected.decode() if isinstance(expected, bytes) else expected
            assert value == text
        elif isinstance(expected, np.ndarray | np.generic) and expected.dtype.kind in "biuf":
            assert np.array_equal(value, expected)
            assert isinstance(value, np.ndarray) == isinstance(expected, np.ndarray)
        else:
            assert value is None
    assert found.attributes.keys() == set(item.attrs)
    count = 0
    for name in item:
        link, count = item.get(name, getlink=True), count + 1
        if not isinstance(link, h5py.HardLink):
            assert found.links[name] is None
            continue
        theirs, mine = item[name], found.child(name)
        if isinstance(theirs, h5py.Group):
            assert mine.is_group and not mine.is_dataset
            count += compare(mine, theirs)
        elif isinstance(theirs, h5py.Dataset):
            assert mine.is_dataset
            same_dataset(mine, theirs)
    return count


def same_dataset(mine: Object, theirs: h5py.Dataset) -> None:
    assert mine.shape == theirs.shape
    kind = mine.type.dtype
    assert kind == theirs.dtype or (kind.kind == "V" and kind.itemsize == theirs.dtype.itemsize)
    plan = theirs.id.get_create_plist()
    words = {
        h5py.h5d.CONTIGUOUS: "contiguous",
        h5py.h5d.CHUNKED: "chunked",
        h5py.h5d.COMPACT: "in the header",
    }
    word = "virtual" if theirs.is_virtual else "external" if theirs.external else words[plan.get_layout()]
    assert mine.storage.kind == word
    assert mine.storage.filters == (plan.get_nfilters() > 0)
    if word == "contiguous":
        assert mine.storage.offset == theirs.id.get_offset()
        if mine.storage.offset is not None:
            assert mine.storage.nbytes in (None, theirs.id.get_storage_size())


def fill(file: h5py.File, rng: np.random.Generator) -> None:
    """Many links and attributes, long and short names, datasets of all types and layouts, links of all kinds."""
    groups = [file]
    for count in (0, 3, 9, 60, 400):
        groups.append(file.create_group(f"{count} members", track_order=bool(count % 2)))
        for number in range(count):
            groups[-1].create_group(f"member {number} {'é' * int(rng.integers(60))}")
    for place, kind in enumerate(TYPES):
        for rank in range(3):
            data = np.zeros(tuple(rng.integers(1, 5, size=rank)), kind)
            file.create_dataset(f"types/{place} {rank}", data=data)
        file["types"].attrs[f"kind {place}"] = np.ones(2, kind)
        file["types"].attrs[f"one {place}"] = np.ones((), kind)
    for number in range(40):
        file["3 members"].attrs[f"{number}" * 9] = [
            "text",
            "",
            "é" * 30,
            np.arange(number),
            number,
            True,
            0.5,
        ][number % 7]
    file.attrs["fixed"] = np.bytes_(b"fixed\0\0")
    file.attrs["nothing"] = h5py.Empty("i4")
    file["scalar"], file["texts"], file["type"] = 3, ["a", "bc"], np.dtype("i4,f8")
    file.create_dataset("of that type", (2,), file["type"].dtype)
    file.create_dataset("never written", (5, 5), "f4")
    file.create_dataset("chunks", data=np.zeros((40, 4)), chunks=True, compression="gzip")
    file.create_dataset("raw", (4,), "f4", external=[("raw", 0, 16)])
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
    if file.libver[1] != "v108":
        file.create_virtual_dataset("virtual", layout)
    file["soft"], file["external"] = h5py.SoftLink("/scalar"), h5py.ExternalLink("other.h5", "/x")
    file["hard"] = file["scalar"]


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_it_reads_what_the_library_writes(version, tmp_path, rng):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=version) as file:
        fill(file, rng)
    with h5py.File(path) as file:
        assert compare(root_of(path), file) > 500


def test_a_file_that_was_changed_in_place(path, tmp_path, rng):
    """Objects of the old format within a file of the new one, as h5py adds them."""
    path = Originals(tmp_path).files[0]
    with h5py.File(path, "r+") as file:
        fill(file, rng)
        file["node"].attrs["note"] = "mine"
    with h5py.File(path) as file:
        assert compare(root_of(path), file) > 500
    with open_graph(path) as opened:
        assert opened.nodes == 40


def test_more_than_1000_members(tmp_path):
    """The library goes on to B-trees of three levels, and blocks of blocks, which graph files never have."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=("v108", "v108")) as file:
        for number in range(900):
            file.create_group(f"partition/{number}")
    assert len(root_of(path).child("partition").links) == 900
    with h5py.File(path, "r+", libver=("v108", "v108")) as file:
        for number in range(900, 9000):
            file.create_group(f"partition/{number}")
    with pytest.raises(DamagedError, match="3 levels"):
        len(root_of(path).child("partition").links)


def test_checksums_are_lookup3(rng):
    """Compare with values of lookup3.c's driver, and with a second implementation."""
    assert checksum(b"") == 0xDEADBEEF
    assert checksum(b"Four score and seven years ago") == 0x17770551
    for length in range(60):
        data = rng.bytes(length)
        assert checksum(data) == lookup3(data)


def test_nothing_stays_open(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"x" * 100)
    for _ in range(3):
        with pytest.raises(Exception, match="not HDF5"):
            open_graph(tmp_path / "a.h5")
    assert not programs.open_files(tmp_path)
