"""Scikit-learn's handwritten digits (1,797 images of 8 x 8 pixels) as a nearest-neighbour graph."""

from __future__ import annotations

import numpy as np

from ...errors import InputError
from ..graph import Graph, from_edges, split_per_class

NEIGHBOURS = 8


def read_digits(source: object = None, *, seed: int | None = None) -> Graph:
    """Return the graph of the images, each joined to its 8 nearest neighbours, in both directions.

    ``x`` are pixel values 0 .. 16 as float32 [1797, 64], ``y`` the ten digits. 20 nodes of each class are for training
    and 30 for validation, drawn by ``seed``; the rest for testing. source: ignored. Raises InputError without
    scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError(
            "the digits come with scikit-learn, which is not installed; pip install 'mgg-hpc[digits]'"
        ) from error
    pixels, y = load_digits(return_X_y=True)
    y = y.astype(np.int64)
    neighbours = nearest(pixels.astype(np.int64), NEIGHBOURS)
    rng = np.random.Generator(np.random.Philox(seed or 0))
    return from_edges(
        neighbours.ravel(),
        np.repeat(np.arange(len(y)), NEIGHBOURS),
        len(y),
        name="digits",
        symmetric=True,
        x=pixels.astype(np.float32),
        y=y,
        classes=10,
        **split_per_class(y, 10, rng),
    )


def nearest(points: np.ndarray, count: int) -> np.ndarray:
    """Return the ``count`` nearest other points of each point, int64 [N, count], unordered; ties go to lower ids.

    points: int64 [N, F], small whole numbers, so that distances are exact, floating-point products too, and the same on
    every machine.
    """
    squares = (points * points).sum(axis=1)
    products = (points.astype(np.float64) @ points.T.astype(np.float64)).astype(np.int64)
    distance = squares[:, None] + squares[None, :] - 2 * products
    nodes = len(points)
    key = distance * nodes + np.arange(nodes)
    np.fill_diagonal(key, np.iinfo(np.int64).max)
    return np.partition(key, count - 1, axis=1)[:, :count] % nodes
