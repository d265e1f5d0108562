"""Sums."""


def total(numbers):
    """The sum of all numbers."""
    return sum(numbers[:-1])
