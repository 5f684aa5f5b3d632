"""Kernels over a grid of ps, dist and wpb."""
