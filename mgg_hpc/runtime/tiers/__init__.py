"""Rows in several kinds of memory, read by number: the rows that are read most often lie nearest.

A row has a slot. The first slots are those of the nearest tier, and so on to the file, which holds the rest (data
tiering: Min, dissertation, University of Illinois, 2022, chapter 4). Placement is fixed: no row moves while it is read.
"""
