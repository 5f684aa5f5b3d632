"""The second stream of a GPU (`DeviceStream.beside`, `wait`), with a torch that only notes which stream does what."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from mgg_hpc.runtime.backends.cuda.context import DeviceStream
from mgg_hpc.runtime.backends.cuda.device_arrays import DeviceArrays


class Cuda:
    """torch.cuda: as there, each thread begins on GPU 0 and its default stream. done: what was noted."""

    def __init__(self):
        self._thread, self.done = threading.local(), []
        cuda = self

        class Stream:
            def __init__(self):
                self.device = cuda.current_device()

            def wait_event(self, event):
                cuda.done.append(("waits", self, event))

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.stream = cuda.current_stream()

        self.Stream, self.Event = Stream, Event

    def is_available(self):
        return True

    def current_device(self):
        return getattr(self._thread, "device", 0)

    def set_device(self, device):
        self._thread.device = device

    def current_stream(self):
        return getattr(self._thread, "stream", None)

    def set_stream(self, stream):
        self._thread.stream = stream

    def is_current_stream_capturing(self):
        return False

    @contextlib.contextmanager
    def stream(self, stream):
        before = self.current_device(), self.current_stream()
        self._thread.device, self._thread.stream = stream.device, stream
        yield
        self._thread.device, self._thread.stream = before


@pytest.fixture
def cuda():
    return Cuda()


@pytest.fixture
def stream(cuda):
    arrays = DeviceArrays()
    arrays._torch = mock.Mock(cuda=cuda, __version__="2")
    arrays.begin(3)
    made = DeviceStream(arrays)
    made.aside = arrays.aside  # of the kernels that sample
    return made


@pytest.mark.parametrize("first", ["this", "another"], ids="{} thread first".format)
def test_another_thread_launches_on_a_second_stream_of_this_rank_s_gpu(cuda, stream, first):
    def copied():
        with stream.aside():
            sampling = cuda.current_stream()
        with stream.beside():
            assert cuda.current_stream() not in (sampling, None)
            return cuda.current_stream(), stream.stamp()

    main, tensors = cuda.current_stream(), [mock.Mock(), mock.Mock()]
    with stream.beside() if first == "this" else contextlib.nullcontext():
        pass
    with ThreadPoolExecutor(1) as pool:
        second, stamp = pool.submit(copied).result()
    assert second not in (None, main) and second.device == main.device == 3 and stamp.stream is second
    assert cuda.current_stream() is main
    stream.wait(stamp, *tensors)
    assert cuda.done == [("waits", main, stamp)]
    for (
        tensor
    ) in tensors:  # so that their memory is not reused on the second stream before this one has read them
        tensor.record_stream.assert_called_once_with(main)
