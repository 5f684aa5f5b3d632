"""The GPUs that the shim makes up for processes that tests start (MGG_SHIM_DEVICES, MGG_SHIM_FREE_BYTES)."""

from __future__ import annotations

import pytest

from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.cuda import module


def test_as_many_as_asked_for_each_at_its_own_place(rng, engine, monkeypatch):
    assert engine.module.devices() == (1, "") and len(engine.module.device_places()) == 1
    count = int(rng.integers(2, 9))
    monkeypatch.setenv("MGG_SHIM_DEVICES", str(count))
    assert module.need_device(engine.module) == count
    assert len(set(engine.module.device_places())) == count


def test_none_where_none_is_asked_for(engine, monkeypatch):
    monkeypatch.setenv("MGG_SHIM_DEVICES", "0")
    with pytest.raises(InputError, match=r"^no CUDA device \(no GPU, as asked for\)$"):
        module.need_device(engine.module)
    assert engine.module.device_places() == []


def test_as_much_is_free_as_asked_for_and_never_more_than_all(rng, engine, monkeypatch):
    free, total = engine.module.memory()
    assert 2**32 < free <= total
    for asked in (0, int(rng.integers(2**50))):
        monkeypatch.setenv("MGG_SHIM_FREE_BYTES", str(asked))
        free, total = engine.module.memory()
        assert free == asked <= total and total > 0
