"""The reader of HDF5 structures finds what the library wrote, in every version of the format, and flipped bits."""

from __future__ import annotations

import time

import h5py
import numpy as np
import programs
import pytest
from torture.report import record

from mgg_hpc.data import header
from mgg_hpc.data.hdf5 import source
from mgg_hpc.data.hdf5.objects import Object
from mgg_hpc.data.store import open_graph
from mgg_hpc.errors import InputError

from .mutants import Originals, check, seal, structures

VERSIONS = ["earliest", ("v108", "v108"), ("v110", "v110"), "latest"]
TYPES = ["<i1", "<i2", "<i4", ">i8", "<u8", "<u4", "<f2", ">f4", "<f8", "S7", "?", "<c8", "V5", "i4,f8"]
LAYOUTS = {h5py.h5d.CONTIGUOUS: "contiguous", h5py.h5d.CHUNKED: "chunked", h5py.h5d.COMPACT: "in the header"}


def root_of(path) -> Object:
    opened = source.Source(header.open_file(path))
    return Object(opened, opened.root, "/")


def compare(found: Object, item: h5py.Group) -> int:
    """Compare everything that lies below, and return the number of objects."""
    assert found.links.keys() == set(item) and found.attributes.keys() == set(item.attrs)
    for name, value in found.attributes.items():
        expected = item.attrs[name]
        if isinstance(expected, str | bytes):
            assert value == (expected.decode() if isinstance(expected, bytes) else expected)
        elif isinstance(expected, np.ndarray | np.generic) and expected.dtype.kind in "biuf":
            assert np.array_equal(value, expected)
            assert isinstance(value, np.ndarray) == isinstance(expected, np.ndarray)
        else:
            assert value is None
    count = len(found.links)
    for name in item:
        if not isinstance(item.get(name, getlink=True), h5py.HardLink):
            assert found.links[name] is None
            continue
        theirs, mine = item[name], found.child(name)
        if isinstance(theirs, h5py.Group):
            assert mine.is_group and not mine.is_dataset
            count += compare(mine, theirs)
        elif isinstance(theirs, h5py.Dataset):
            same_dataset(mine, theirs)
    return count


def same_dataset(mine: Object, theirs: h5py.Dataset) -> None:
    assert mine.is_dataset and mine.shape == theirs.shape
    kind, plan = mine.type.dtype, theirs.id.get_create_plist()
    assert kind == theirs.dtype or (kind.kind == "V" and kind.itemsize == theirs.dtype.itemsize)
    word = "virtual" if theirs.is_virtual else "external" if theirs.external else LAYOUTS[plan.get_layout()]
    assert mine.storage.kind == word
    assert mine.storage.filters == (plan.get_nfilters() > 0)
    if word == "contiguous":
        assert mine.storage.offset == theirs.id.get_offset()
        if mine.storage.offset is not None:
            assert mine.storage.nbytes in (None, theirs.id.get_storage_size())


def fill(file: h5py.File, rng: np.random.Generator) -> None:
    """Many links and attributes, long and short names, datasets of all types and layouts, links of all kinds."""
    for count in (0, 3, 9, 60, 400):
        group = file.create_group(f"{count} members", track_order=bool(count % 2))
        for number in range(count):
            group.create_group(f"member {number} {'é' * int(rng.integers(60))}")
    for length in range(1, 13):  # so that the checksum is of structures of all lengths
        file.create_group(f"{length} bytes").attrs["x"] = np.bytes_(b"x" * (90 + length))
    for place, kind in enumerate(TYPES):
        for rank in range(3):
            data = np.zeros(tuple(rng.integers(1, 5, size=rank)), kind)
            file.create_dataset(f"types/{place} {rank}", data=data)
        file["types"].attrs[f"kind {place}"] = np.ones(2, kind)
        file["types"].attrs[f"one {place}"] = np.ones((), kind)
    for number in range(40):
        values = ["text", "", "é" * 30, np.arange(number), number, True, 0.5]
        file["3 members"].attrs[f"{number}" * 9] = values[number % 7]
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


@pytest.mark.parametrize("version", [*VERSIONS, "changed in place"], ids=str)
def test_it_reads_what_the_library_writes(version, tmp_path, monkeypatch, rng):
    """Changed in place: objects of the old format within a file of the new one, as h5py adds them."""
    path, lengths, checksum = tmp_path / "a.h5", set(), source.checksum
    changed = version == "changed in place"
    if changed:
        path = Originals(tmp_path).files[0]
    with h5py.File(path, **({"mode": "r+"} if changed else {"mode": "w", "libver": version})) as file:
        fill(file, rng)
        file.require_group("node").attrs["note"] = "mine"
    monkeypatch.setattr(source, "checksum", lambda data: lengths.add(len(data) % 12) or checksum(data))
    with h5py.File(path) as file:
        assert compare(root_of(path), file) > 500
    if changed:
        with open_graph(path) as opened:
            assert opened.nodes == 40
    elif version != "earliest":
        assert lengths == set(range(12))  # which the checksum tells apart


def test_more_than_1000_members(tmp_path):
    """The library goes on to B-trees of three levels, and blocks of blocks, which graph files never have."""
    path = tmp_path / "a.h5"
    for first, last in ((0, 900), (900, 9000)):
        with h5py.File(path, "a", libver=("v108", "v108")) as file:
            for number in range(first, last):
                file.create_group(f"partition/{number}")
        if last == 900:
            assert len(root_of(path).child("partition").links) == 900
    with pytest.raises(source.DamagedError, match="3 levels"):
        len(root_of(path).child("partition").links)


def test_nothing_stays_open(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"x" * 100)
    for _ in range(3):
        with pytest.raises(InputError, match="not HDF5"):
            open_graph(tmp_path / "a.h5")
    assert not programs.open_files(tmp_path)


@pytest.fixture
def originals(tmp_path):
    return Originals(tmp_path)


def _everything(path) -> list[object]:
    """All that a graph file says."""
    with open_graph(path) as opened:
        rows = vars(opened.slice(0, opened.nodes))
        if opened.sparse:
            rows |= vars(rows.pop("x"))
        arrays = [*rows.values(), *(opened.bounds(parts) for parts in opened.partitions)]
        facts = [opened.name, opened.uuid, opened.order, opened.contents, opened.partitions]
    return facts + [each.tobytes() if isinstance(each, np.ndarray) else each for each in arrays]


@pytest.mark.trials(20, torture=1000)
@pytest.mark.parametrize("where", ["graph files", "HDF5 structures"])
def test_a_flipped_bit_is_found_or_has_no_meaning(where, originals, trials, tmp_path, rng):
    """In datasets and digests each is found; in what HDF5 has put between them, it may change nothing."""
    began, missed, without = time.monotonic(), [], 0
    for trial in range(trials):
        # The last file has no checksums of structures.
        path = originals.files[trial % (4 if where == "graph files" else 3)]
        data, inside = bytearray(path.read_bytes()), np.zeros(path.stat().st_size, bool)
        with open_graph(path) as opened:
            spans = [(each.offset, each.layout.nbytes) for each in opened.spans().values()]
        for offset, length in spans:
            inside[offset : offset + length] = True
        if where == "graph files":
            offset, length = spans[int(rng.choice(np.flatnonzero([length for _, length in spans])))]
            at = offset + int(rng.integers(length))
        else:
            at = int(rng.choice(np.flatnonzero(~inside)))
        data[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "m.h5").write_bytes(data)
        try:
            check(tmp_path / "m.h5")
            without += 1
            sound = where != "graph files" and _everything(tmp_path / "m.h5") == _everything(path)
        except InputError as error:
            sound = "m.h5" in str(error)
        if not sound:
            missed.append(f"{path.name}: byte {at}, {path.read_bytes()[at]} became {data[at]}")
    seconds = round(time.monotonic() - began, 1)
    record(f"flipped bits in {where}", trials, len(missed), without_meaning=without, seconds=seconds)
    assert not missed, "\n".join(missed)


def test_checksums_are_those_of_the_library(originals):
    """So mutants are sealed with what the library, too, would believe."""
    texts = b"", b"Four score and seven years ago"  # of lookup3.c's driver
    assert [source.checksum(text) for text in texts] == [0xDEADBEEF, 0x17770551]
    kinds = set()
    for path in originals.files[:3]:
        data = path.read_bytes()
        for each in structures(path):
            copy = bytearray(data)
            copy[each.checksum] ^= bool(each.checksum)
            seal(copy, each)
            assert copy == data
            kinds.add(each.kind)
    assert kinds == {"superblock", "OHDR", "OCHK", "FRHP", "FHDB", "BTHD", "BTLF"}
