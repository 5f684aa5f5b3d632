"""A layer over a table of features of the size of ogbn-papers100M's."""
