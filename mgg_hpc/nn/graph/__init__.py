"""A rank's part of a distributed graph: loading, adjacencies, transfers, the handle that layers aggregate over."""
