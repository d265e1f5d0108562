"""Which request may start next, by topic, leader epoch and offset, at any log truncation."""

from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.agents.fold.chain import StartChain
from rollcall.consumers.history.reading.counting import CountingRule
from rollcall.schemas.messages import Event, RolloutRefused


def start(from_offset: int, offset: int, epoch: int, requests_id: str) -> RolloutRefused:
    return RolloutRefused("refused", "", from_offset, offset, None, epoch, requests_id)


ANY_START = st.builds(
    start, st.integers(0, 6), st.integers(0, 6), st.integers(-1, 3), st.sampled_from(["", "a", "b"])
)


@given(st.lists(ANY_START, max_size=12))
def test_fold_and_law_count_the_same_starts(
    starts: list[RolloutRefused],
) -> None:
    chain, law = StartChain(), CountingRule()
    for number, body in enumerate(starts):
        counts = not chain.breaks(body)
        if counts:
            chain = chain.then(body)
        assert counts == (law.take(Event.decision(f"r{number}", 1, "w", body)) == "")


@given(st.lists(st.sampled_from(["ask", "cut", "anew", "start", "again"]), max_size=40), st.data())
def test_every_present_request_starts_once_at_any_log_truncation(
    happens: list[str], data: st.DataObject
) -> None:
    log: list[tuple[int, str]] = []  # of each request its epoch and its topic's id
    chain, epoch, made = StartChain(), 0, 0
    position, started = 0, set[tuple[int, str, int]]()

    def read(at: int, first: int) -> None:
        """Write the start of one request; it counts at most once."""
        nonlocal chain
        named = log[at][0], log[at][1], at
        body = start(first, at, *log[at])
        if not chain.breaks(body):
            assert named not in started
            started.add(named)
            chain = chain.then(body)

    accepted = False
    for each in [*happens, "start"]:
        if each == "ask":
            log.append((epoch, f"id{made}"))
        elif each == "cut" and log:
            del log[data.draw(st.integers(0, len(log) - 1)) :]
            epoch, position, accepted = epoch + 1, min(position, len(log)), True
        elif each == "anew":
            log.clear()
            epoch, made, position, accepted = 0, made + 1, 0, True
        elif each in ("start", "again"):  # from the commit, or from the start after a lost one
            position = 0 if each == "again" else position
            for at in range(position, len(log)):
                read(at, 0 if accepted else at)
            position, accepted = len(log), False

    assert {(one, two, at) for at, (one, two) in enumerate(log)} <= started
