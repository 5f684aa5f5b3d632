"""Sums of neighbours' rows, beside other libraries' and a gather floor."""
