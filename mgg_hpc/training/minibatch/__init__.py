"""Mini-batches that CPU and device prepare together: operators, their measured times, and the executor of a plan."""
