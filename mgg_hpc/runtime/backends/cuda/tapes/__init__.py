"""Tapes as CUDA source: a kernel for one tape, straight-line, which CuPy compiles where it is installed."""
