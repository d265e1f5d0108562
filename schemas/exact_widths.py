"""Widths of forward passes with which trainer and engine agree to the bit.

A kernel's order of summation depends on its shape, so passes of different shapes differ in the last
bits. Therefore each token is computed in a pass over one row whose width depends only on the
token's position. Causality hides the tokens after it. Trainer and engine then compute the same
bits, at any turn and with any continuation.
"""

NARROWEST = 32
FILL = 0
"""The token that pads a row; causality hides it."""


def width_of(count: int, most: int) -> int:
    """Return the width of the pass that computes the token after `count` tokens.

    It is a power of two, or the number `most` of the model's positions.
    """
    return min(max(NARROWEST, 1 << (count - 1).bit_length()), most)
