"""Input features: sparse rows, rows that stay on the host, rows made for graphs without features."""
