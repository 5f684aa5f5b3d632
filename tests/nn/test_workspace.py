"""Rows are used again when, and only when, nothing holds them any more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mgg_hpc.nn.workspace import Workspace
from mgg_hpc.runtime.backends.arguments import Geometry, Options
from mgg_hpc.runtime.backends.base import Capabilities
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World


@pytest.fixture
def workspace():
    return Workspace(SerialBackend(0, World(1), Options(Geometry(8, 2, 2))))


def test_rows_are_padded_and_reused_only_when_released(workspace):
    first = workspace.rows(10, 7, torch.float32)
    assert first.shape == (10, 7) and first.stride() == (8, 1) and first.data_ptr() % 64 == 0
    address = first.data_ptr()
    second = workspace.rows(10, 7, torch.float32)
    assert second.data_ptr() != address
    view = first[3:5].t()
    del first
    third = workspace.rows(10, 7, torch.float32)
    assert third.data_ptr() not in (address, second.data_ptr())  # the view still holds the first
    del view
    assert workspace.rows(10, 7, torch.float32).data_ptr() == address
    assert workspace.rows(10, 3, torch.float64).data_ptr() != second.data_ptr()


def test_autograd_keeps_what_it_saved(workspace):
    weight = torch.ones(4, requires_grad=True)

    def product():
        rows = workspace.rows(5, 4, torch.float32)
        rows.fill_(3.0)
        return (rows * weight).sum()

    kept = product()
    other = workspace.rows(5, 4, torch.float32)
    other.fill_(-1.0)
    kept.backward()
    assert weight.grad.tolist() == [15.0] * 4


def test_no_rows_no_columns_and_rows_of_another_device(workspace):
    assert workspace.rows(0, 5, torch.float32).shape == (0, 5)
    assert workspace.rows(5, 0, torch.float64).shape == (5, 0)
    rows = Workspace(SimpleNamespace(capabilities=Capabilities("none", device="meta"))).rows(
        10, 7, torch.float16
    )  # from torch, and padded too
    assert (rows.device.type, rows.shape, rows.stride()) == ("meta", (10, 7), (8, 1))


def test_rows_of_varying_numbers_take_buffers_of_a_few_sizes(rng):
    workspace = Workspace(SerialBackend(0, World(1), Options(Geometry(8, 2, 2))), varying=True)
    kept = [workspace.rows(1000, 8, torch.float32) for _ in range(2)]
    del kept
    for count in rng.integers(900, 1100, 200):
        first, second = (workspace.rows(int(count), 8, torch.float32) for _ in range(2))
        first.fill_(1.0)
        second.fill_(2.0)
        assert first.shape == (count, 8) and float(first.sum()) == 8 * count  # apart from the second
        del first, second
    held = [buffer for buffers in workspace._free.values() for buffer in buffers]
    assert len(held) == 2 and sum(map(len, held)) < 2 * 2 * 1100 * 32
