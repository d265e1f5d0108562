"""The CPU that this process has used, with all whose end was seen by somebody below it."""

import resource


def cpu_used_s() -> float:
    """In seconds. What still runs below this process is not counted yet."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
