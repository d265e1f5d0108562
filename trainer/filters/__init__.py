"""Filters: which groups, once they are scored, are worth training on; one rule to a file."""
