"""What a rank takes of its cores: threads, as asked or set or its share; and a share of the largest data cache."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import cores, mpi


@pytest.mark.parametrize(
    ("caches", "wanted"),
    [  # type, size and the cores that share it, as the kernel shows them; the largest share counts
        (
            [("Data", "48K", "0,8"), ("Unified", "2048K", "0,8"), ("Unified", "12288K", "0-7,8-15")],
            1024 << 10,
        ),
        ([("Instruction", "65536K", "0,8"), ("Data", "48K", "0,8")], 24 << 10),
        ([("Unified", "32768K", "0-2,5,8-11")], 32768 * 1024 // 8),
        *(([("Unified", size, "0-1")], 0) for size in ("", "huge", "32M")),
        ([], 0),
    ],
)
def test_the_largest_share_counts_and_not_the_largest_cache(tmp_path, monkeypatch, caches, wanted):
    monkeypatch.setattr(cores, "_CACHES", tmp_path / "cache")
    for index, words in enumerate(caches):
        folder = tmp_path / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in zip(("type", "size", "shared_cpu_list"), words, strict=True):
            (folder / name).write_text(f"{text}\n")
    assert cores.cache_bytes() == wanted


@pytest.mark.parametrize(
    ("given", "asked", "wanted"),
    [("3", 0, 3), ("3", 5, 5), (" 2 ,4", 0, 2), ("", 0, None), (None, 0, None), ("", 7, 7)],
)
def test_threads_are_those_asked_or_set_or_the_share(monkeypatch, given, asked, wanted):
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert mpi.threads(MPI.COMM_SELF, asked) == (wanted or mpi.threads_share(MPI.COMM_SELF))


@pytest.mark.parametrize("given", ["0", "-1", "two", "1.5", "0,4"])
@pytest.mark.parametrize("asked", [0, 2])
def test_what_is_no_number_of_threads_is_named(monkeypatch, given, asked):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    said = f"OMP_NUM_THREADS='{given.partition(',')[0]}' is not a number of threads"
    with pytest.raises(InputError, match=said):
        mpi.threads(MPI.COMM_SELF, asked)
