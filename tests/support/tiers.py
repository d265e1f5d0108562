"""Sort tests into two tiers: `make test` is quick, `make test-all` runs what it leaves out.

The mark `thorough` is the whole difference between the tiers; `tests/README.md` says what belongs
to which. A property has more examples in the thorough tier, by the profile of hypothesis.
"""

import math
from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings

QUICK = "quick"
"""The profile of hypothesis that `make test` chooses."""
FULL = "full"
"""The default profile: every test that is not run by `make test` has all its examples."""
SHARE = 5
"""A property of the quick tier has this many times fewer examples."""


def cases(values: Iterable[Any], quick: int | Collection[Any] = 1) -> list[Any]:
    """Make parameters of values; the first few, or those named, are quick and all others thorough.

    A tuple stands for several parameters, as in `pytest.mark.parametrize`.
    """
    params = []
    for number, value in enumerate(values):
        is_quick = number < quick if isinstance(quick, int) else value in quick
        marks = () if is_quick else pytest.mark.thorough
        several = value if isinstance(value, tuple) else (value,)
        params.append(pytest.param(*several, marks=marks))
    return params


def selected(request: pytest.FixtureRequest, name: str) -> list[Any]:
    """Find the values of a parameter in the tests of this module that are to run."""
    items = [item for item in request.session.items if item.path == request.path]
    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return list(dict.fromkeys(each[name] for each in params if name in each))


def examples(full: int) -> int:
    """Return the number of examples for a property: `full`, or its share in the quick tier."""
    is_quick = settings.get_current_profile_name() == QUICK
    return max(math.ceil(full / SHARE), 4) if is_quick else full
