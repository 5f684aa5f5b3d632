"""Counters of a GPU for each kernel, by Nsight Compute."""
