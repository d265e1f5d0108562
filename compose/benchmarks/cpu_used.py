"""The CPU time of this process and of its descendants that were reaped."""

import resource


def cpu_used_s() -> float:
    """Return the CPU seconds; running descendants do not count yet."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
