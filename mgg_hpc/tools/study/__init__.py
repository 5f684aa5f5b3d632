"""The studies of MGG's papers, on any graph and backend: what each part of the design is worth."""
