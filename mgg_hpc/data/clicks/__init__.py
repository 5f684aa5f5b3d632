"""Click logs: a label, numbers and categories a row."""
