"""Whether the invariants hold, decided from the log alone."""
