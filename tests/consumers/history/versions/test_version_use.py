"""Which versions are needed by requests and rollouts at any time."""

from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.history.versions.version_use import LINGERS_MS, VersionUse
from rollcall.schemas.messages import (
    Event,
    Limits,
    RolloutFinished,
    RolloutRequest,
    RolloutStarted,
    Task,
)
from tests.support.journals import sampled_by

LASTS_S = 60.0
DAY_MS = 86_400_000


def request(rollout: int, pinned: int, policy: str = "policy") -> RolloutRequest:
    """Pinned in its own policy, or in another that it names."""
    limits = Limits(rollout_timeout_s=LASTS_S)
    if policy == "policy":
        return RolloutRequest(f"r{rollout}", Task(), limits=limits, policy_version=pinned)
    versions = {"policy": pinned} if pinned >= 0 else {}
    return RolloutRequest(
        f"r{rollout}", Task(), policy_id=policy, limits=limits, policy_versions=versions
    )


def take(
    use: VersionUse, asked: RolloutRequest, body: object, at_ms: int = 0, *, is_out: bool = True
) -> None:
    """One entry of a rollout's journal."""
    entry = Event(asked.rollout_id, 1, 0, 0, b"", b"", "somebody", body)  # type: ignore[arg-type]
    use.take_event(entry, at_ms, is_out=is_out)


def looked(use: VersionUse, now_ms: int) -> set[int]:
    """The versions needed at that time of the log."""
    use.now_ms = now_ms
    return {*use.requested(), *use.open()}


PINS = st.tuples(st.integers(0, 3), st.integers(-1, 4), st.sampled_from(["policy", "other"]))


@given(st.lists(PINS, max_size=8), st.data())
def test_a_pinned_version_is_needed_from_request_to_end(
    pins: list[tuple[int, int, str]], data: st.DataObject
) -> None:
    # Given requests, some for the same rollout, of which the first few have begun, and some of
    # these ended; and what the agents group has committed is never further than what began
    asked = [request(*each) for each in pins]
    begun = data.draw(st.integers(0, len(asked)))
    committed = data.draw(st.integers(0, begun))
    ended = data.draw(st.sets(st.integers(0, begun - 1))) if begun else set[int]()
    waits_ms = data.draw(st.sampled_from([0, DAY_MS]))  # held back before its first command

    use = VersionUse("policy")
    for offset in range(committed, len(asked)):
        use.take_request(asked[offset], offset)
    for offset in range(begun):
        take(use, asked[offset], RolloutStarted(asked[offset], offset, offset))
    alive = {each.rollout_id for at, each in enumerate(asked) if at not in ended}
    for offset in sorted(ended):
        if asked[offset].rollout_id not in alive:
            take(use, asked[offset], RolloutFinished("finished"))

    # Then all continuing rollouts keep their version, and once all have ended none does
    wanted = {r.versions_for("policy")[1] for r in asked if r.rollout_id in alive} - {-1}
    assert wanted <= looked(use, waits_ms)
    for offset, each in enumerate(asked):
        take(use, each, RolloutStarted(each, offset, offset))
        take(use, each, RolloutFinished("finished"), is_out=False)
    assert looked(use, DAY_MS) == {r.versions_for("policy")[1] for r in asked} - {-1}
    for each in asked:
        take(use, each, RolloutFinished("finished"))
    assert not looked(use, DAY_MS)


def test_a_repeated_request_is_not_begun_by_the_first_ones_start() -> None:
    use, first, again = VersionUse("policy"), request(1, 3), request(1, 5)
    use.take_request(again, 7)
    take(use, first, RolloutStarted(first, 2, 2))
    take(use, first, RolloutFinished("finished"))

    assert use.requested() == {5: 1}
    assert looked(use, DAY_MS) == {5}


def test_a_pinned_rollout_with_an_answer_counts_only_until_its_deadline() -> None:
    use, asked = VersionUse("policy"), request(1, 3)
    take(use, asked, RolloutStarted(asked, 0, 0))
    assert looked(use, DAY_MS) == {3}

    take(use, asked, sampled_by(3), DAY_MS)

    over_ms = DAY_MS + int(1000 * LASTS_S) + LINGERS_MS
    assert looked(use, over_ms - 1) == {3}
    assert not looked(use, over_ms)


def test_unpinned_requests_keep_no_version() -> None:
    use = VersionUse("policy")
    use.take_request(request(1, -1), 0)
    use.take_request(request(2, -1, "other"), 1)
    use.take_request(RolloutRequest("r3", Task(), policy_id="other", policy_version=3), 2)

    assert not looked(use, 0)
