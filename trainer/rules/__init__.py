"""The rules of a step, one file per kind, and the values that they are computed from."""
