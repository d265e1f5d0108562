"""Requests with a run's id and a forged draw: a restarted trainer ignores them."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.producers.admission import PublishedRequests
from rollcall.schemas.ids import group_id, request_id
from rollcall.schemas.messages import RolloutRequest
from tests.support.journals import request
from tests.support.staged_run import Stage
from tests.support.tiers import examples

FAR = st.one_of(st.integers(0, 80), st.integers(81, 10**17))
FORGED = st.tuples(FAR, st.booleans(), st.integers(0, 3))
"""How far above the last draw, whether the id is the draw's own, and which member's."""


def forge(stage: Stage, like: RolloutRequest, draw: int, own: bool, member: int) -> None:
    name = request_id("run", draw, member) if own else f"made-up-{draw}-{member}"
    made_up = replace(like, rollout_id=name, group_id=group_id("run", draw))
    value = stage.codec.encode(stage.topics.requests, made_up)
    stage.log.append(stage.topics.requests, name.encode(), value)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(FORGED, max_size=6), st.integers(0, 2))
def test_a_restart_stays_within_admission_despite_forged_requests(
    forged: list[tuple[int, bool, int]], steps: int
) -> None:
    with TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        stage.turn()
        stage.train(steps)
        published = stage.trainer.ledger.next_draw
        asked = stage.asked()
        for far, own, member in forged:
            forge(stage, asked[0], published + far, own, member)

        stage.begin()
        stage.trainer.turn(0.0)

        most = stage.trainer.run.rule.max_running
        assert stage.trainer.ledger.next_draw >= published, "what was drawn counts"
        assert stage.trainer.ledger.running() <= most
        own_ids = {request.rollout_id for request in asked}
        after = {r.rollout_id for r in stage.asked()} - own_ids
        assert len(after) <= most + len(forged), "nor does it ask for more"


@given(st.integers(0, 10**17), st.text(max_size=20), st.integers(-5, 2**31 - 1))
def test_only_a_draws_own_ids_count(draw: int, name: str, claimed: int) -> None:
    published = PublishedRequests("run", group_size=4)
    made_up = replace(
        request(name, "a:a"),
        run_id="run",
        purpose="train",
        group_id=group_id("run", draw),
        group_size=claimed,
    )

    assert published.take(replace(made_up, rollout_id=name)) == -1
    assert published.take(replace(made_up, rollout_id=request_id("run", draw, 4))) == -1
    assert (published.highest_draw, published.ids, published.drawn) == (-1, set(), {})
    assert published.take(replace(made_up, rollout_id=request_id("run", draw, 3))) == draw
