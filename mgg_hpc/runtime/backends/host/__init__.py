"""Backends on CPUs: the native kernels, and where symmetric rows live."""
