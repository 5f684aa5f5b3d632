"""Sizes of the CUDA grids that sum: MGG's model of warps, shared memory and CUDA blocks (OSDI '23, sections 5.2 and 6).

The paper's equations, with D values a row:

    (1)  WPW = 2 ps D dist                          values that one warp works through
         SMEM = ps wpb IntS + 2 wpb D FloatS        bytes of shared memory of a block
    (2)  numWarps = max(local, remote) / dist       local, remote: numbers of neighbour partitions
    (3)  numBlocks = numWarps / wpb,  blocksPerSM = numBlocks / numSMs

Two things differ here. Narrow rows take only some lanes of a warp, which then is several workers. And kernels keep
edges and sums in registers: of SMEM only the second term is left, remote rows on their way. The kernel of "direct" has
a ring of four rows for each worker, the one of "get" dist stages of ps rows (with the factor ps that the paper's
listing has and its formula lacks), each with its barriers. "halo" takes 16 bytes, and 16 for each warp, which are left
out here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import InputError
from .layout import RowFormat

LANES = 32  # of a warp
PACK = 16  # bytes that a lane loads at once
RING_ROWS = 4  # cuda/gpu/arguments.h; the module's `ring_bytes` is compared when it is loaded
MOST_STAGES = 32  # cuda/gpu/arguments.h
MOST_BLOCKS = 2**31 - 1  # of a grid
LINE = 128  # bytes of a cache line, and of the largest request to the host's memory
LINK_BANDWIDTH, LINK_LATENCY = 64e9, 1.5e-6  # bytes a second, seconds: PCIe 5.0 x16
LINK_SHARE = 0.1  # of the multiprocessors, for kernels that read the host's memory
MOST_TRIED = {"ps": 32, "dist": 16, "wpb": 16, "far_ps": 16}  # by a search (training/tuning)


@dataclass(frozen=True)
class Limits:
    """Limits of a GPU, as its runtime reports them: bytes of shared memory, threads, CUDA blocks.

    shared_reserved: bytes that CUDA takes of each block.
    """

    name: str
    multiprocessors: int
    threads_per_block: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_block: int
    shared_per_multiprocessor: int
    shared_reserved: int


@dataclass(frozen=True)
class Launch:
    """The grid and the shared memory of an aggregation's kernel.

    lanes: lanes of a worker. packs: packs of 16 bytes that each lane holds at once.
    part_edges: a destination of more edges is shared by several workers. shared_bytes: SMEM of a block.
    blocks_per_multiprocessor: blocksPerSM of the whole grid. resident: number of blocks of a multiprocessor that
    threads and shared memory allow at once (registers may allow fewer: the backend queries the runtime).
    """

    lanes: int
    packs: int
    part_edges: int
    shared_bytes: int
    warps: int
    blocks: int
    threads: int
    blocks_per_multiprocessor: float
    resident: int


def shape(format: RowFormat) -> tuple[int, int]:
    """Return (lanes, packs) of a worker for rows of this format: lanes for a whole row, up to two packs each.

    Four packs a lane would take 200 registers a thread: wider rows are walked in passes.
    """
    packs = -(-format.row_bytes // PACK)
    return lanes_of(packs), 1 if packs <= LANES else 2


def lanes_of(units: int) -> int:
    """Return the lanes of a worker that reads a row of so many units, one each: at most a warp."""
    return next((lanes for lanes in (4, 8, 16) if lanes >= units), LANES)


def link_blocks(limits: Limits, threads: int) -> int:
    """Return the most CUDA blocks of a kernel that reads rows over a link (Min, dissertation, section 3.3.2).

    A warp each has a request for a line of 128 bytes under way, for LINK_BANDWIDTH at LINK_LATENCY; but no more than
    fit on LINK_SHARE of the multiprocessors. threads: of a CUDA block.
    """
    warps = math.ceil(LINK_BANDWIDTH * LINK_LATENCY / LINE)
    resident = limits.threads_per_multiprocessor // threads
    return max(1, min(-(-warps * LANES // threads), int(LINK_SHARE * limits.multiprocessors * resident)))


def ring_bytes(threads: int, packs: int) -> int:
    """Return the shared bytes of a block of the direct kernel: the ring, and barriers for workers of 4 lanes."""
    return threads * packs * RING_ROWS * PACK + threads // 4 * RING_ROWS * 8


def stage_bytes(threads: int, lanes: int, packs: int, rows: int, dist: int) -> int:
    """Return the shared bytes of a block of the get kernel: dist stages of ``rows`` rows, and their barriers."""
    return threads // lanes * dist * (rows * lanes * packs * PACK + 8) + 16


def tried(name: str, default: int) -> tuple[int, ...]:
    """Return the values of a knob that a search tries: powers of 2, and the default."""
    powers = {2**power for power in range(MOST_TRIED[name].bit_length())}
    return tuple(sorted(powers | {default}))


def part_edges(ps: int, dist: int) -> int:
    """Return the number of edges that one warp sums (WPW / D); several workers share a destination of more."""
    return 2 * ps * dist


def launch(
    transfer: str,
    local: int,
    remote: int,
    format: RowFormat,
    *,
    ps: int,
    dist: int,
    wpb: int,
    limits: Limits,
) -> Launch:
    """Return the grid of a transfer's kernel for these numbers of neighbour partitions of at most ``ps`` edges.

    transfer: "get", for rows that pointers reach; "halo", whose ``blocks`` the caller cuts to those that are resident
    at once; any other for the direct kernel. Raises InputError, which names both numbers, if a block takes more than
    the GPU has.
    """
    threads, (lanes, packs), room = _threads(ps, dist, wpb, limits), shape(format), limits.shared_per_block
    shared = 0
    if transfer == "get":
        if dist > MOST_STAGES:
            raise InputError(f"plan.dist = {dist}: get has {MOST_STAGES} stages under way at most")
        shared, row = stage_bytes(threads, lanes, packs, ps, dist), lanes * packs * PACK
        if shared > room:
            if stage_bytes(threads, lanes, packs, 1, 1) > room:
                raise _too_much("wpb", wpb, shared, room // stage_bytes(LANES, lanes, packs, 1, 1), limits)
            if stage_bytes(threads, lanes, packs, 1, dist) > room:
                raise _too_much("dist", dist, shared, (room - 16) // (threads // lanes * (row + 8)), limits)
            raise _too_much("ps", ps, shared, ((room - 16) // (threads // lanes * dist) - 8) // row, limits)
    elif transfer != "halo" and remote:
        shared = ring_bytes(threads, packs)
        if shared > room:
            raise _too_much("wpb", wpb, shared, room // ring_bytes(LANES, packs), limits)
    workers = max(1, -(-max(local, remote) // dist))
    warps = max(1, -(-workers * lanes // LANES))
    blocks = min(-(-warps * LANES // threads), MOST_BLOCKS)
    resident = min(limits.blocks_per_multiprocessor, limits.threads_per_multiprocessor // threads)
    return Launch(
        lanes=lanes,
        packs=packs,
        part_edges=part_edges(ps, dist),
        shared_bytes=shared,
        warps=warps,
        blocks=blocks,
        threads=threads,
        blocks_per_multiprocessor=blocks / limits.multiprocessors,
        resident=min(resident, limits.shared_per_multiprocessor // (shared + limits.shared_reserved)),
    )


def fitting_ps(format: RowFormat, *, most: int, dist: int, wpb: int, limits: Limits) -> int:
    """Return the default of ps for rows of this format: with it `get` fits two CUDA blocks on a multiprocessor."""
    lanes, packs = shape(format)
    room, slot = limits.shared_per_multiprocessor // 2 - limits.shared_reserved - 16, lanes * packs * PACK
    return int(min(most, max(1, (room // (wpb * LANES // lanes * dist) - 8) // slot)))


def _threads(ps: int, dist: int, wpb: int, limits: Limits) -> int:
    for name, value in (("ps", ps), ("dist", dist), ("wpb", wpb)):
        if value < 1:
            raise InputError(f"plan.{name} = {value}: expected 1 or more")
    threads = LANES * wpb
    if threads > limits.threads_per_block:
        most = limits.threads_per_block // LANES
        raise InputError(
            f"plan.wpb = {wpb}: a block of {threads} threads, but {limits.name} takes {limits.threads_per_block}; "
            f"at most {most}"
        )
    return threads


def _too_much(name: str, value: int, shared: int, most: int, limits: Limits) -> InputError:
    return InputError(
        f"plan.{name} = {value}: a block takes {shared:,} bytes of shared memory, but {limits.name} has "
        f"{limits.shared_per_block:,}; at most {most}"
    )
