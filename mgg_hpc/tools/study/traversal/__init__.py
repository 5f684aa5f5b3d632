"""The study of traversals by zero-copy: requests as they are counted, and searches as a GPU runs them."""
