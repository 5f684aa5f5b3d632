"""Arrays of numbers in archives and tables, which are read in passes of bounded memory."""
