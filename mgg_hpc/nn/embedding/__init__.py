"""Embedding tables whose rows are divided over ranks."""
