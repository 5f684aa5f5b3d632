"""Modules built from changed sources: with a planted fault, or with a change that may be faster."""
