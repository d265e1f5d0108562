"""History used again: published, scored or exported once more, and dead letters sent back."""
