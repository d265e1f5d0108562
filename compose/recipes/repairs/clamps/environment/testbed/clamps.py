"""Values within bounds."""


def clamp(value, low, high):
    """The value, or the nearer end where it lies beyond."""
    if value < low:
        return low
    if value > high:
        return low
    return value
