"""A core's share of the largest data cache, from folders as the kernel shows them."""

from __future__ import annotations

import pytest

from mgg_hpc.runtime import cores


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """Writes a cache's entry."""
    monkeypatch.setattr(cores, "_CACHES", tmp_path)

    def write(index, kind, size, shared):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{text}\n")

    return write


def test_the_largest_share_counts_and_not_the_largest_cache(caches):
    caches(0, "Data", "48K", "0,8")
    caches(1, "Instruction", "65536K", "0,8")
    caches(2, "Unified", "2048K", "0,8")
    caches(3, "Unified", "12288K", "0-7,8-15")
    assert cores.cache_bytes() == 1024 * 1024


def test_lists_of_cores_may_have_runs_and_single_ones(caches):
    caches(3, "Unified", "32768K", "0-2,5,8-11")
    assert cores.cache_bytes() == 32768 * 1024 // 8


@pytest.mark.parametrize("size", ["", "huge", "32M"])
def test_nothing_is_known_of_what_cannot_be_read(caches, size):
    caches(3, "Unified", size, "0-1")
    assert cores.cache_bytes() == 0


def test_nothing_is_known_without_the_folder(caches):
    assert cores.cache_bytes() == 0
