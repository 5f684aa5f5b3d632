"""Commands around training: files, partitions, doctor, clean."""
