"""Distributed aggregation made differentiable: layers and models."""
