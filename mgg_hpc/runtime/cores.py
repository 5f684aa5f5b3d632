"""The cores and the memory that this process may use, as the kernel and control groups limit them."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

LARGE = 4 << 20  # least bytes of an array with pages of its own
_M_MMAP_THRESHOLD = -3  # malloc.h of glibc


def affinity() -> frozenset[int]:
    """Return the cores on which this process may be scheduled."""
    return frozenset(os.sched_getaffinity(0))


def quota() -> float:
    """Return the limit of the control group on processor time, in cores; infinity without one."""
    limit = float("inf")
    for folder in _groups("cpu"):
        words = _read(folder / "cpu.max").split()  # version 2: "200000 100000" or "max 100000"
        if not words:
            words = (_read(folder / "cpu.cfs_quota_us") + " " + _read(folder / "cpu.cfs_period_us")).split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            limit = min(limit, int(words[0]) / int(words[1]))
    return limit


def available() -> int:
    """Return the number of cores that this process and its children can keep busy; at least 1."""
    return max(1, int(min(len(affinity()), quota())))


def processor() -> str:
    """Return the model name of the first core, or the machine's architecture if the kernel gives no name."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def cache_bytes() -> int:
    """Return the size of the first core's largest data cache per hardware thread, in bytes; 0 if unknown."""
    largest = 0
    for entry in _CACHES.glob("index*"):
        size, sharing = _read(entry / "size").strip(), _read(entry / "shared_cpu_list").strip()
        if _read(entry / "type").strip() == "Instruction" or not size.endswith("K"):
            continue
        largest = max(largest, int(size[:-1]) * 1024 // max(1, len(parse_list(sharing))))
    return largest


def parse_list(text: str) -> frozenset[int]:
    """Return the cores in a list of the form "0-3,8", as the kernel writes them."""
    parts = (part.partition("-") for part in text.strip().split(","))
    ranges = (range(int(first), int(last or first) + 1) for first, _, last in parts if first.isdigit())
    return frozenset().union(*ranges)


def return_freed_memory(least: int = LARGE) -> None:
    """Make malloc return the pages of arrays of ``least`` bytes and more to the system when they are freed.

    By itself glibc raises its threshold to 32 MiB as a program runs, and the process keeps smaller arrays that are
    freed, in more pieces every epoch. Large rows are reused (nn/workspace.py), so this costs little.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, least)


def trim_memory() -> None:
    """Give free pages within malloc's arenas back to the system. glibc before 2.38 does not reuse all of them."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def memory_available() -> int:
    """Return the bytes that can still be allocated without swapping, on the machine or in the control group."""
    found = [2**63]
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    versions = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    for folder in _groups("memory"):
        for limit, used in versions:
            size, taken = _read(folder / limit).strip(), _read(folder / used).strip()
            if size.isdigit() and taken.isdigit():
                found.append(max(0, int(size) - int(taken) + _file_cache(folder)))
    return min(found)


def memory_total() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _file_cache(group: Path) -> int:
    """Return the bytes of a control group that the kernel can free when needed: clean pages of files."""
    for line in _read(group / "memory.stat").splitlines():
        if line.startswith(("inactive_file ", "total_inactive_file ")):
            return int(line.split()[1])
    return 0


def _groups(controller: str) -> list[Path]:
    """Return the folders of this process's control groups for ``controller``, from its own to the root."""
    folders = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        number, names, path = line.split(":", 2)
        if number == "0" and not names:
            root = _CGROUP
        elif controller in names.split(","):
            root = _CGROUP / controller
        else:
            continue
        group = root / path.lstrip("/")
        folders += [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
        folders.append(root)  # in a container the path is the host's, and the group is mounted as the root
    return list(dict.fromkeys(folders))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
