"""A rank of two that greet each other: whether MPI and its launcher work here. See prepare.py."""

from __future__ import annotations

import sys

from mpi4py import MPI

if __name__ == "__main__":
    there = MPI.COMM_WORLD.allgather((MPI.COMM_WORLD.rank, MPI.Get_processor_name()))
    if [rank for rank, _ in there] != [0, 1]:
        sys.exit(f"a world of {len(there)} ranks, where 2 were started: the launcher belongs to another MPI")
