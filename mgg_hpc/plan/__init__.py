"""Who owns which rows, and what each rank sums, from where, in which order."""
