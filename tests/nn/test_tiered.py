"""Tensors whose rows lie in tiers: the rows of the array or file, whatever lies where; refusals; and large offsets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from data.graphs import random_graph, refused

import mgg_hpc as mgg
from mgg_hpc.data.writer import write
from mgg_hpc.runtime.streaming import files as streaming
from mgg_hpc.runtime.tiers import files, place

ROWS = 300
TIERS = [{}, {"near": 700}, {"host": "1K"}, {"near": 500, "peers": 600, "host": 900}]
WRITABLE = {"writable": True}
KINDS = ["f4", "f8", "f2", "i8", "u1", "bfloat16"]


@pytest.fixture(params=["array", "memmap", "torch", "graph file", "renumbered graph file"])
def made(request, rng, tmp_path):
    """A function that makes an array [ROWS, dim], and a `TieredTensor` of it from one kind of source."""

    def make(dim: int, dtype: str, **how) -> tuple[np.ndarray, mgg.TieredTensor]:
        x = (rng.standard_normal((ROWS, dim)) * 50).astype("f4" if dtype == "bfloat16" else dtype)
        if "graph file" in request.param:
            x = x if dtype in ("f4", "f2") else x.astype("f4")
            contents = {"half": dtype == "f2", "permuted": request.param != "graph file"}
            graph = random_graph(rng, nodes=ROWS, edges=900, features=dim, **contents)
            write(tmp_path / "g.h5", graph, force=True)
            order = slice(None) if graph.permutation is None else np.argsort(graph.permutation)
            return graph.x[order], mgg.TieredTensor.open(tmp_path / "g.h5", **how)
        if request.param == "torch":
            tensor = torch.from_numpy(x)
            tensor = tensor.bfloat16() if dtype == "bfloat16" else tensor
            return tensor.double().numpy(), mgg.TieredTensor.from_torch(tensor, **how)
        if request.param == "array":
            return x, mgg.TieredTensor.from_numpy(x, **how)
        skipped = int(rng.integers(0, 2000))  # a slice of a map, which begins anywhere in its file
        shape = (skipped + ROWS, dim)
        mapped = np.memmap(tmp_path / "x", x.dtype, "w+", offset=int(rng.integers(0, 9000)), shape=shape)
        mapped[skipped:] = x
        return x, mgg.TieredTensor.from_numpy(mapped[skipped:], **how)

    return make


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("tier", [*TIERS, {"near": "1G", "host": "1G"}])
def test_rows_are_those_of_the_source(rng, made, tier, scored):
    for dim in (1, 5, 16, 33):
        score = rng.integers(0, 9, ROWS).astype(rng.choice(["f4", "i8"])) if scored else None
        x, tensor = made(dim, str(rng.choice(KINDS)), score=score, **tier)
        with tensor:
            assert (len(tensor), tensor.shape) == (ROWS, (ROWS, dim))
            ids = rng.integers(0, ROWS, 4 * ROWS)
            for given in (ids, torch.from_numpy(ids), ids.tolist(), ids.astype(np.int32)):
                np.testing.assert_array_equal(tensor[given].to(torch.float64), x[ids].astype("f8"))
            mask = rng.random(ROWS) < 0.3
            found = tensor[torch.from_numpy(mask)].to(torch.float64)
            np.testing.assert_array_equal(found, x[mask].astype("f8"))
            out = torch.empty(28, dim, dtype=tensor.dtype)
            assert tensor.gather(slice(5, 200, 7), out) is out
            np.testing.assert_array_equal(out.to(torch.float64), x[5:200:7].astype("f8"))
            assert tensor[[]].shape == (0, dim)
            read = tensor.stats()
            assert sum(each["rows"] for each in read.values()) == 16 * ROWS + mask.sum() + 28
            assert all(each["bytes"] == each["rows"] * dim * tensor.dtype.itemsize for each in read.values())


def test_the_rows_of_the_highest_scores_are_near(rng, tmp_path):
    x, score = rng.random((ROWS, 4)).astype("f4"), rng.permutation(ROWS)
    np.save(tmp_path / "x.npy", x)
    best = np.flatnonzero(score >= ROWS - 50)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with mgg.TieredTensor.from_numpy(mapped, near=20 * 16, host=30 * 16 + 15, score=score) as tensor:
        assert torch.equal(tensor[best], torch.from_numpy(x[best]))
        assert [each["rows"] for each in tensor.stats().values()] == [20, 30, 0]
        tensor[np.flatnonzero(score < ROWS - 50)]
        assert tensor.stats()["file"] == {"rows": ROWS - 50, "bytes": 16 * (ROWS - 50)}


def test_wrong_numbers_and_results_are_refused(rng):
    tensor = mgg.TieredTensor.from_numpy(rng.random((10, 3)))
    for ids, number in (([0, 10, 11], 10), ([3, -1], -1), (np.array([1 << 63], np.uint64), 1 << 63)):
        with pytest.raises(IndexError, match=f"row {number}, and rows are 0 to 9"):
            tensor[ids]
    others = (torch.tensor([1], dtype=torch.uint8), np.zeros(0, bool), (1, 2))  # torch's masks, and places
    for ids in (torch.tensor([0.5]), np.array([True, False]), [[1, 2]], ["a"], 3, *others):
        with pytest.raises(TypeError, match="rows are read by integers"):
            tensor[ids]
    with pytest.raises(TypeError, match=r"3 is one integer: pass \[3\]"):
        tensor[3]
    with pytest.raises(IndexError, match="row 2, and the tensor has no rows"):
        mgg.TieredTensor.from_numpy(np.zeros((0, 3)))[[2]]
    with pytest.raises(ValueError, match=r"out is a ndarray; expected a torch.Tensor"):
        tensor.gather([1, 2], np.empty((2, 3)))
    for out in (torch.empty(2, 3), *(torch.empty(shape, dtype=torch.float64) for shape in [(1, 3), (2, 4)])):
        with pytest.raises(ValueError, match=r"expected \[2, 3\] of torch.float64 on cpu"):
            tensor.gather([1, 2], out)


def test_tiers_and_sources_that_do_not_fit_are_refused(rng, tmp_path, monkeypatch):
    x, made = rng.random((10, 3)), mgg.TieredTensor
    write(tmp_path / "none.h5", random_graph(rng, sparse=True))
    maps = (np.memmap(tmp_path / kind, kind, "w+", shape=(3, 2)) for kind in ("complex", "bool"))
    for make, given, how, message in (
        (made.from_numpy, x, {"near": "much"}, "near: 'much' is not a size"),
        (made.from_numpy, x, {"host": -5}, "host is -5"),
        (made.from_numpy, x, {"near": 1.5}, "near: 'float' object"),
        (made.from_numpy, x, {"near": True}, "near is True"),
        (made.from_numpy, x, {"peers": "auto"}, "needs a score"),
        (made.from_numpy, x, {"device": "tpu"}, "'tpu' is none of cpu, cuda"),
        (made.from_numpy, x, {"score": [1, 2]}, "a finite number for each of 10 rows"),
        (made.from_numpy, x, {"score": np.full(10, np.nan)}, "a finite number for each of 10 rows"),
        (made.from_numpy, x, {"folder": tmp_path}, "folder is for the scratch file of writable=True"),
        (made.from_numpy, x, WRITABLE | {"folder": tmp_path / "none"}, "scratch folder .*none: No such file"),
        (made.from_numpy, x, WRITABLE | {"device": "cuda"}, 'is for device="cpu", and it is "cuda"'),
        (made.from_numpy, x[0], {}, r"float64 \[3\]; expected numbers \[N, dim\]"),
        (made.from_numpy, x.astype(complex), {}, "complex128"),
        (made.from_numpy, np.asfortranarray(x), {}, "lie apart"),
        (made.from_numpy, x[::-1], {}, "rows overlap"),
        (made.from_numpy, np.broadcast_to(x[:1], (5, 3)), {}, "rows overlap"),
        (made.from_numpy, [[1.0]], {}, "rows are a list"),
        (made.from_numpy, x.astype(">f8"), {}, "byte order"),
        *((made.from_numpy, mapped, {}, "expected a type of real numbers") for mapped in maps),
        (made.from_torch, x, {}, "this is ndarray"),
        (made.from_torch, torch.eye(3).to_sparse(), {}, "torch.sparse_coo on cpu"),
        (made.from_torch, torch.eye(3, dtype=torch.float8_e5m2), {}, "rows are torch.float8_e5m2"),
        (made.open, tmp_path / "none.h5", {}, "has no dense features"),
    ):
        with refused(message):
            make(given, **how)
    monkeypatch.setattr(place.cores, "memory_available", lambda: 100)
    with refused("tiers need 160 B of this node: near 64 B, host 96 B; 100 B are available"):
        made.from_numpy(x, near=80, host=125)


def test_files_that_are_cut_off_or_written_to_are_refused(rng, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(1000))
    with refused("has 1,000 bytes, and its rows end at byte 1,200"):
        files.FileRows(path, 200, 250, 1, np.dtype("f4"))
    mapped = np.memmap(path, "f4", "r", shape=(250, 1))
    with mgg.TieredTensor.from_numpy(mapped) as tensor:
        tensor[[1]]
        os.utime(path, ns=(1, 1))
        with refused("has changed since it was opened"):
            tensor[[1]]


def test_a_read_that_fails_names_file_and_row(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(bytes(1000))
    for score in (None, np.arange(250)[::-1]):
        mapped = np.memmap(path, "f4", "r", shape=(250, 1))
        with mgg.TieredTensor.from_numpy(mapped, near=40, score=score) as tensor:
            monkeypatch.setattr(files.FileRows, "check", lambda _: None)
            os.truncate(path, 500)
            with refused(f"{path}: row 125 of it cannot be read: the file ends before it"):
                tensor[[3, 249, 124, 130, 125]]
            os.truncate(path, 1000)
        with pytest.raises(ValueError, match="the tensor is closed"):
            tensor[[200]]


@pytest.mark.parametrize("shape", [(0, 3), (5, 0), (1, 1), (1, 5)])
def test_small_shapes(shape):
    x = np.arange(shape[0] * shape[1], dtype="f4").reshape(shape)
    for array in (x, x.T):
        ids = np.arange(len(array))
        for how in ({}, {"near": 8, "score": -ids}):
            assert mgg.TieredTensor.from_numpy(array, **how)[ids].tolist() == array.tolist()


def test_maps_that_are_copies_are_arrays_and_replaced_files_are_refused(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((3, 2)))
    mapped = np.load(path, mmap_mode="r")
    assert mgg.TieredTensor.from_numpy(mapped.astype("f4"))[[1]].tolist() == [[1, 1]]
    np.save(tmp_path / "other.npy", np.zeros((3, 2)))
    (tmp_path / "other.npy").replace(path)
    with refused("is another file now than the one that is mapped"):
        mgg.TieredTensor.from_numpy(mapped)


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("tier", TIERS)
def test_rows_are_written_wherever_they_lie_and_their_source_is_not(rng, made, tmp_path, tier, scored):
    for dim in (1, 5, 33):
        score = rng.permutation(ROWS) if scored else None
        x, tensor = made(dim, str(rng.choice(KINDS)), score=score, writable=True, folder=tmp_path, **tier)
        source, expected = {path: path.read_bytes() for path in tmp_path.iterdir()}, x.astype("f8")
        with tensor:
            assert torch.equal(tensor[:].double(), torch.from_numpy(expected))
            for _ in range(4):
                ids = rng.integers(0, ROWS, rng.integers(0, 2 * ROWS))  # of equal numbers the last one counts
                rows = torch.from_numpy(rng.integers(0, 99, (len(ids), dim))).to(tensor.dtype)
                tensor.update(ids if rng.random() < 0.5 else torch.from_numpy(ids), rows)
                expected[ids] = rows.double()
                assert torch.equal(tensor[:].double(), torch.from_numpy(expected))
        assert source == {path: path.read_bytes() for path in tmp_path.iterdir()}
        if not source:
            assert (x.astype("f8") != expected).any()


def test_many_rows_of_zeros_are_written_in_runs(rng, tmp_path):
    for dim in (3, (1 << 18) + 1):  # and rows that are longer than a run
        rows = 300_000 // dim + 4
        with mgg.TieredTensor.zeros(rows, dim, near=rows * dim, folder=tmp_path) as tensor:
            assert not tensor[:].any()
            for ids in (np.arange(1, rows), np.array([rows - 1, 0, rows - 1])):
                new = rng.random((len(ids), dim), np.float32)
                tensor.update(ids, new)
                kept = {number: at for at, number in enumerate(ids.tolist())}
                assert torch.equal(tensor[list(kept)], torch.from_numpy(new[list(kept.values())]))


def test_what_cannot_be_written_is_refused(rng):
    x = rng.random((10, 3))
    with pytest.raises(ValueError, match="read-only; pass writable=True"):
        mgg.TieredTensor.from_numpy(x).update([1], x[:1])
    tensor = mgg.TieredTensor.from_numpy(x, writable=True)
    for rows in (x[:2], x[:1, :2], x[:1].astype("f4"), x[0], torch.ones(1, 3)):
        with pytest.raises(ValueError, match=r"expected \[1, 3\] of torch.float64"):
            tensor.update([4], rows)
    for ids, number in (([3, 10], 10), ([-2, 3], -2)):
        with pytest.raises(IndexError, match=f"row {number}, and rows are 0 to 9"):
            tensor.update(ids, x[:2])
    with pytest.raises(TypeError, match="rows are read by integers"):
        tensor.update([0.5], x[:1])
    assert torch.equal(tensor[:], torch.from_numpy(x))
    tensor.close()
    with pytest.raises(ValueError, match="the tensor is closed"):
        tensor.update([1], x[:1])
    for given, how, message in (
        ((3, 0), {}, r"rows are \[3, 0\]"),
        ((10.5, 3), {}, "'float' object cannot be interpreted as an integer"),
        (("10", 3), {}, "'str' object cannot be interpreted as an integer"),
        ((1 << 62, 8), {}, r"expected less than 2\^63 bytes"),
        ((3, 2, torch.float8_e5m2), {}, "float8_e5m2"),
        ((3, 2, np.float32), {}, "dtype"),
        ((3, 2, torch.bool), {}, "rows are bool; expected a type of real numbers"),
        ((3, 2, torch.complex64), {}, "rows are complex64; expected a type of real numbers"),
        ((3, 2), {"writable": False}, "writable is False; zeros are for writing"),
    ):
        with refused(message):
            mgg.TieredTensor.zeros(*given, **how)
    assert mgg.TieredTensor.zeros(0, 3)[[]].shape == (0, 3)


def test_a_write_that_fails_names_folder_and_row(tmp_path):
    for score, ids, row in ((None, [9, 16, 15], 15), (np.arange(100), [95, 83, 84], 84)):
        with mgg.TieredTensor.zeros(100, 1, near=160, folder=tmp_path, score=score) as tensor:
            full = os.open("/dev/full", os.O_RDWR)
            os.dup2(full, tensor._table.file.descriptor)
            os.close(full)
            with refused(f"scratch file in {tmp_path}: row {row} cannot be written: No space left on device"):
                tensor.update(ids, torch.ones(3, 1))


def test_a_scratch_file_in_memory_counts_as_memory(tmp_path, monkeypatch):
    for folder in map(Path, ("/dev/shm", "/proc", "/", tmp_path)):
        kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True)
        assert streaming.in_memory(folder) == (kind.stdout.strip() in ("tmpfs", "ramfs"))
    monkeypatch.setattr(place.cores, "memory_available", lambda: 1000)
    how = {"near": 160, "folder": "/dev/shm"}
    with refused("near 160 B, the scratch file in /dev/shm, which is memory .* choose a folder"):
        mgg.TieredTensor.zeros(221, 1, **how)
    for folder, rows in (("/dev/shm", 220), (tmp_path, 10**6)):
        if rows < 1000 or not streaming.in_memory(folder):
            mgg.TieredTensor.zeros(rows, 1, near=160, folder=folder).close()


@pytest.mark.slow
def test_offsets_beyond_4_gib(tmp_path):
    """Of a file with holes: row numbers above 2^32, offsets above 2^33."""
    path, rows = tmp_path / "x", (1 << 32) + 100
    with path.open("wb") as file:
        for number in (0, 1 << 31, 1 << 32, rows - 1):
            file.seek(2 * number)
            file.write(np.int16(number % 1000 + 1).tobytes())
    with mgg.TieredTensor.from_numpy(np.memmap(path, "i2", "r", shape=(rows, 1)), near=64) as tensor:
        numbers = [rows - 1, 0, (1 << 32) - 1, 1 << 31, 1 << 32]
        assert tensor[numbers][:, 0].tolist() == [(rows - 1) % 1000 + 1, 1, 0, 649, 297]
