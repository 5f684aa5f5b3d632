"""Readers: one file a format, each returns a Graph."""
