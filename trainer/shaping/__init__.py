"""Reward shaping, one rule to a file: what is added to a total before the advantages.

Filters and evaluations see rewards as they were scored.
"""
