"""Reward shaping, one rule per file: changes of totals before the advantages.

Filters and evaluations use unshaped rewards.
"""
