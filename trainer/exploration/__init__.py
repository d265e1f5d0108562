"""Exploration rules, one per file: from the rewards of a batch to entropy coefficients."""
