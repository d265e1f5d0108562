"""Ranges of whole numbers, each with its first number and the one behind its last."""


def merged(ranges):
    """The same numbers in as few ranges as can be."""
    found = []
    for first, end in sorted(ranges):
        if found and first < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return found
