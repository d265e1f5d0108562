"""Widths of forward passes with which trainer and engine agree to the bit.

A kernel adds in an order that depends on its shape, so two passes of different shapes differ in the
last bits. Where a token is always computed in a pass over one row of one width, which its place
alone decides, and what lies behind it is never seen, it has the same bits whoever computes it, at
whichever turn, and whatever comes after it.
"""

NARROWEST = 32
FILL = 0
"""The token that fills a row up; causality hides it."""


def width_of(count: int, most: int) -> int:
    """The width in which the token after the first `count` ones is computed: a power of two, or
    the `most` positions that the model has."""
    return min(max(NARROWEST, 1 << (count - 1).bit_length()), most)
