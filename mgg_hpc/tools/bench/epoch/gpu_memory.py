"""How much of a GPU's memory something takes: of torch's allocator, and beside it."""

from __future__ import annotations

from dataclasses import dataclass

from ..harness.gpu import Call


@dataclass(frozen=True)
class Held:
    """Bytes at some time: torch's tensors, and all that is allocated elsewhere, the CUDA context among it."""

    tensors: int
    outside: int


class GpuMemory:
    """Memory of the current GPU."""

    def held(self) -> Held:
        """Return what is held now."""
        import torch

        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return Held(torch.cuda.memory_allocated(), total - free - torch.cuda.memory_reserved())

    def peak(self, before: Held, call: Call) -> dict[str, int]:
        """Return the most that is held during a call beyond what was ``before``: "tensors" and "outside", in bytes.

        What is outside torch is that of the call's end, since our plans are kept.
        """
        import torch

        torch.cuda.reset_peak_memory_stats()
        call()
        outside = self.held().outside - before.outside
        return {"tensors": torch.cuda.max_memory_allocated() - before.tensors, "outside": outside}
