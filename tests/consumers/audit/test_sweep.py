"""Each record of runs of every kind is altered: `verify` names it, or a table says why not."""

from functools import cache

import pytest

from rollcall.consumers.audit.blind_spots import BLIND_SPOTS, spots_of
from tests.support.rig import PREFIX
from tests.support.swept_runs import HARMS, KINDS, harms
from tests.support.tiers import cases
from tests.support.whole_log import audited

Missed = dict[tuple[str, str, str], list[int]]
"""By harm, topic and record the offsets at which nothing is said."""


@cache
def swept(kind: str) -> Missed:
    rig = KINDS[kind]()
    healthy = audited(rig)
    assert healthy.ok, healthy.breaches
    missed: Missed = {}
    for harm in harms(rig):
        if harm.missed(healthy):
            named = harm.how, harm.topic.removeprefix(PREFIX), harm.kind
            missed.setdefault(named, []).append(harm.at)
    return missed


@pytest.mark.parametrize("kind", cases(KINDS))
def test_a_harmed_record_is_reported_or_a_known_blind_spot(kind: str) -> None:
    unexplained = {
        named: offsets for named, offsets in swept(kind).items() if not any(spots_of(*named, kind))
    }

    assert unexplained == {}


@pytest.mark.thorough
def test_every_listed_blind_spot_occurs_in_the_sweep() -> None:
    met = {spot for kind in KINDS for named in swept(kind) for spot in spots_of(*named, kind)}

    assert [spot for spot in BLIND_SPOTS if spot not in met] == []
    assert {spot.harm for spot in BLIND_SPOTS} == set(HARMS)
