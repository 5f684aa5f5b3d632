"""Ranks, launchers, memory and kernels."""
