"""Differentiable functions of rows and a distributed graph."""
