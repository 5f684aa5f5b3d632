"""Rows that do not fit in memory: the stores that they lie in, and the buffer through which kernels read them."""
