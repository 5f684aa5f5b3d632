"""Neighbour sampling: what a batch of rows needs of the whole graph."""
