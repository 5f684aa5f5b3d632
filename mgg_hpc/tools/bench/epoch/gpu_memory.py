"""How much of a GPU's memory something takes: of torch's allocator, and beside it."""

from __future__ import annotations

from dataclasses import dataclass

from ..harness.gpu import Call


@dataclass(frozen=True)
class Held:
    """Bytes allocated at some time: torch's tensors, and all other allocations, the CUDA context among them."""

    tensors: int
    outside: int


class GpuMemory:
    """A meter of the current GPU's memory."""

    def held(self) -> Held:
        """Return the bytes that are allocated now."""
        import torch

        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return Held(torch.cuda.memory_allocated(), total - free - torch.cuda.memory_reserved())

    def peak(self, before: Held, call: Call) -> dict[str, int]:
        """Return the most that a call allocates beyond ``before``: "tensors" and "outside", in bytes.

        Bytes outside torch are those at the call's end, since our plans are kept.
        """
        import torch

        torch.cuda.reset_peak_memory_stats()
        call()
        outside = self.held().outside - before.outside
        return {"tensors": torch.cuda.max_memory_allocated() - before.tensors, "outside": outside}
