"""DLRM: recommendation models whose embedding tables are divided over ranks."""
