"""The commands of `mgg`: a file for each group of them, which names their options."""
