"""The variants that studies compare, and the systems of the papers that they stand in for."""

from __future__ import annotations

# On CPUs.
HALO = "halo: each remote row once, sums meanwhile (ours)"
BULK = "bulk exchange, then sums (as ROC, DGCL)"
DIRECT = "direct: each edge reads through a pointer"
GET = "get: a get for each edge, a block ahead"
ALL_GATHER = "all-gather, then sums (NCCL's whole partitions)"

# Epochs on CPUs, by transfer of the job and stand-in.
EPOCHS = {
    "halo": HALO,
    "bulk": BULK,
    "direct": DIRECT,
    "get": GET,
    "all-gather": ALL_GATHER,
}

# On the GPUs of several ranks.
POINTERS = "get: copies through pointers, dist stages ahead (ours)"
LOADS = "direct: each edge's row is loaded"
BY_LANES = "get: one lane for its worker (ours without pointers)"
SCOPES = {
    "thread": "get: by single threads (nvshmem_getmem_nbi)",
    "warp": "get: by warps (nvshmemx_getmem_nbi_warp)",
    "block": "get: by blocks (nvshmemx_getmem_nbi_block)",
}

# On a GPU, whose remote rows lie in page-locked memory of the host; by the names of bench/overlap/gpu_transfers.py.
ON_GPU = {
    "sum": "sums alone, all rows on the GPU",
    "halo": "halo: each remote row once, sums meanwhile (ours)",
    "get": "get: by warps, dist stages ahead (ours)",
    "bulk": "bulk exchange, then sums (as ROC, DGCL)",
    "direct": "direct over pinned rows (as DGL's zero-copy)",
    "managed": "managed memory, read-mostly (as UVM)",
    "ring": "ring of whole partitions (as NCCL)",
    "get-whole": "get: destinations not partitioned",
    "get-late": "get: when a row is needed",
    "get-separate": "get: local and remote on separate warps",
    "get-thread": "get: by single threads, not warps",
    "get-block": "get: by whole blocks, not warps",
    "get-plain": "get: a row an edge, nothing of MGG (direct NVSHMEM)",
    "halo moves": "halo's transfer alone",
    "get moves": "gets alone",
}
