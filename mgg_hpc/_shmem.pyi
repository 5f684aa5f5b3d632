"""A symmetric heap over OpenSHMEM, and how rows move between PEs (cuda/python/module_shmem.cpp).

Addresses are plain numbers. Whatever is called before `start`, beside `version` and `started`, raises RuntimeError.
"""

def start(heap_bytes: int) -> None:
    """Start OpenSHMEM, once a process and after MPI, with a heap of this size on each PE. Collective."""

def finish() -> None:
    """End OpenSHMEM, and MPI with it; does nothing if it has not been started. Collective."""

def started() -> bool: ...
def version() -> str:
    """What the module was built with: "Open MPI v4.1.4, OpenSHMEM 1.4"."""

def me() -> int: ...
def size() -> int: ...
def allocate(bytes: int) -> int:
    """The address of new memory on the heap, aligned to 64. Collective; raises MemoryError on all PEs."""

def release(memory: int) -> None:
    """Give back what `allocate` returned. Collective."""

def pointer(mine: int, pe: int) -> int:
    """Where ``mine``, an address in this PE's heap, lies on ``pe`` as this process sees it; 0 if out of reach."""

def barrier() -> None:
    """Wait until all PEs' stores, gets and puts are done. Collective."""

def transport_address() -> int:
    """Return the address of the mgg::Transport (cuda/runtime/transport_host.h) that schedules of _host take."""
