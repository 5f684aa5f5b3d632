"""Tests of what runs on several ranks, with any MPI."""

from ranks import (  # noqa: F401
    comm,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_sessionstart,
    rng,
)
