"""Graphs whose rows do not fit in memory: rows in stores, of which a part is in memory at a time."""
