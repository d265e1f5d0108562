"""Filters that select scored groups or turns for training, one rule per file."""
