"""Models of other libraries over a distributed graph, as they are: `mgg.convert`."""
