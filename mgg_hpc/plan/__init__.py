"""Ownership of rows, and plans of the sums that each rank computes."""
