"""A log that lost its tail or was made anew: named, not passed over, and gone on from if accepted.

Whatever was cut, and however far the log has grown again since, every request that is on its topic
comes to an end once the loss is accepted.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.history.reading.local_programs import watched_world
from rollcall.consumers.history.waiting.waiting import WaitReader
from rollcall.schemas.errors import JournalGone, TopicRecreated
from rollcall.schemas.messages import RolloutStarted, Trajectory
from tests.support.lost_rig import Lost
from tests.support.memory_cluster import MemoryAdmin
from tests.support.tiers import cases, examples
from tests.support.whole_log import audited

TOPICS = {
    "requests": lambda rig: rig.topics.requests,
    "events": lambda rig: rig.topics.events,
    "calls": lambda rig: rig.topics.calls("p"),
    "trajectories": lambda rig: rig.topics.trajectories,
}


@settings(max_examples=examples(25), deadline=None)
@given(
    topic=st.sampled_from(sorted(TOPICS)),
    kept=st.floats(0, 0.99),
    later=st.integers(0, 8),
    restarted=st.booleans(),
)
def test_lost_tail_is_named_and_work_resumes_after_acceptance(
    topic: str, kept: float, later: int, restarted: bool
) -> None:
    rig = Lost()
    name = TOPICS[topic](rig)
    end = rig.log.bounds(name)[0][1]
    if restarted:
        rig.replace_crew()
    cut = int(kept * end)
    rig.log.truncate(name, 0, cut)
    rig.submit("later", later)

    # Then the audit reports it, before any worker does and despite later records
    report = audited(rig, drained=False)
    tails = [breach for breach in report.breaches if "lost its tail" in breach.text]
    assert (name, cut) in {(breach.topic, breach.offset) for breach in tails}
    assert report.breaches[: len(tails)] == tails  # first, for it explains what follows

    # While readers continue with the remaining records
    waits = WaitReader(rig, MemoryAdmin(rig.log), watched_world(5.0), "default").waiting().waits
    assert {f"later{n}" for n in range(later)} <= {wait.rollout_id for wait in waits}

    # And so does the worker, which stops
    with pytest.raises(JournalGone, match=f"{name} 0.*(lost its tail|was cut at {cut}).*--accept"):
        rig.work()

    # And workers that accept it continue, permanently
    rig.replace_crew(accept=True)
    rig.work()
    rig.replace_crew()
    rig.submit("last", 2)
    rig.work()
    lost = {f"r{n}" for n in range(4)} if topic == "trajectories" else set()
    assert rig.waiting() <= lost
    assert not [b for b in audited(rig).breaches if "tail" in b.text]


@pytest.mark.parametrize("later", [0, 2, 9])
def test_cut_requests_leave_no_breach_after_the_loss_is_accepted(later: int) -> None:
    rig = Lost()
    rig.log.truncate(rig.topics.requests, 0, 1)
    rig.submit("later", later)
    named = {b.text for b in audited(rig, drained=False).breaches}
    assert sum("but the journal starts another here" in text for text in named) == min(later, 3)

    rig.replace_crew(accept=True)
    rig.work()

    report = audited(rig)
    assert report.ok == (later > 0), report.breaches  # nothing tells that a start's request is gone
    assert rig.waiting() == set()
    assert report.cut_off == (3 if later else 0)


def test_starts_lost_by_the_journal_are_written_again() -> None:
    rig = Lost()
    rig.submit("more", 2)
    before = rig.log.bounds(rig.topics.events)[0][1]
    rig.work()
    rig.log.truncate(rig.topics.events, 0, before)

    rig.replace_crew(accept=True)
    rig.work()

    ended = [each.rollout_id for each in rig.read(rig.topics.trajectories, Trajectory)]
    assert [ended.count(f"r{n}") for n in range(4)] == [1, 1, 1, 1]
    assert {"more0", "more1"} <= {each.rollout_id for each in rig.events(RolloutStarted)}


@pytest.mark.parametrize("topic", sorted(TOPICS))
@pytest.mark.parametrize("later", cases([0, 2, 9], {2}))
@pytest.mark.parametrize("forgotten", [True, False])
def test_recreated_topic_is_named_and_work_resumes_after_acceptance(
    topic: str, later: int, forgotten: bool
) -> None:
    rig = Lost()
    name = TOPICS[topic](rig)
    group = next(g for g in rig.log.group_names() if rig.log.commits(g, name))
    kept = dict(rig.log.group(group).committed)
    rig.replace_crew()
    rig.log.recreate(name)
    if not forgotten:  # as where a member commits once more, or a group is restored
        rig.log.group(group).committed.update(kept)
    rig.submit("later", later)

    silent = forgotten and topic in ("calls", "trajectories")  # nothing of them counts twice
    if not silent:
        with pytest.raises((JournalGone, TopicRecreated), match=f"{name}.*made anew"):
            rig.work()
        rig.replace_crew(accept=True)
    rig.work()
    rig.replace_crew()
    rig.submit("last", 2)
    rig.work()

    fresh = {f"later{n}" for n in range(later)} | {"last0", "last1"}
    assert not fresh & rig.waiting()
    if topic == "requests":
        report = audited(rig)
        assert report.ok, report.breaches
