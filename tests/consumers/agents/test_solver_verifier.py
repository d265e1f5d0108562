"""Two policies in one rollout: the calls to each, and the result."""

import json
from collections import Counter

import pytest

from rollcall.consumers.agents.solver_verifier import solver_verifier
from tests.support.journals import Hand

CONFIG = json.dumps({"policies": {"solver": "p", "verifier": "run-verifier"}})


def test_an_answer_confirmed_by_the_verifier_is_submitted() -> None:
    hand = Hand(solver_verifier)
    [reset] = hand.start("solver_verifier", agent_config=CONFIG)
    [call] = hand.show(reset, "even?")
    [verdict] = hand.say(call, "Yes")

    assert (call.policy_id, verdict.policy_id) == ("p", "run-verifier")
    assert [m.content for m in verdict.messages] == ["even? Yes"]

    [step] = hand.say(verdict, "Yes")
    [end] = hand.show(step, "", terminated=True)
    trajectory = hand.end(end)
    assert step.action == "Yes"
    assert json.loads(trajectory.result) == {"first": "Yes", "verdict": "Yes", "answer": "Yes"}
    assert trajectory.policies == ("p", "run-verifier")


def test_the_solver_answers_again_after_a_no() -> None:
    hand = Hand(solver_verifier)
    [reset] = hand.start("solver_verifier", agent_config=CONFIG)
    [call] = hand.show(reset, "even?")
    [verdict] = hand.say(call, "Yes")

    [again] = hand.say(verdict, " no ")

    assert (again.policy_id, again.sequence) == ("p", call.sequence)
    assert [m.content for m in again.messages] == [" no "]
    [step] = hand.say(again, "No")
    [end] = hand.show(step, "", terminated=True)
    told = json.loads(hand.end(end).result)
    assert told == {"first": "Yes", "verdict": " no ", "answer": "No"}


def play(rollout_id: str, first: str) -> dict[str, str]:
    """The result of a rollout with decoys and a verifier that always says no."""
    hand = Hand(solver_verifier)
    config = json.dumps({**json.loads(CONFIG), "decoys": ["Yes", "No"]})
    [reset] = hand.start("solver_verifier", rollout_id=rollout_id, agent_config=config)
    [call] = hand.show(reset, "even?")
    [verdict] = hand.say(call, first)
    asked = verdict.messages[0].content
    [then] = hand.say(verdict, "No")
    if asked == f"even? {first}":
        [then] = hand.say(then, "again")
    [end] = hand.show(then, "", terminated=True)
    return {"asked": asked, **json.loads(hand.end(end).result)}


def test_half_of_the_rollouts_show_the_verifier_a_decoy() -> None:
    told = [play(f"r{n}", "Yes") for n in range(200)]

    # a fair coin is further off once in 200,000 times
    decoys = [each for each in told if "shown" in each]
    assert 68 <= len(decoys) <= 132
    assert {each["shown"] for each in decoys} == {"No"}
    assert all(each["asked"] == f"even? {each.get('shown', 'Yes')}" for each in told)


def test_the_solvers_answer_stands_after_a_no_to_a_decoy() -> None:
    told = [play(f"r{n}", "Yes") for n in range(20)]

    assert {("shown" in each, each["answer"]) for each in told} == {(True, "Yes"), (False, "again")}


def test_an_unparsable_answer_gets_any_decoy() -> None:
    shown = Counter(play(f"r{n}", "dolphins").get("shown") for n in range(100))

    assert set(shown) == {None, "Yes", "No"}


def test_a_rollout_always_shows_the_same_decoy() -> None:
    assert [play(f"r{n}", "No") for n in range(10)] == [play(f"r{n}", "No") for n in range(10)]


@pytest.mark.parametrize("decoys", ["Yes", [1], {"a": "b"}, None])
def test_decoys_that_are_no_list_of_answers_are_refused(decoys: object) -> None:
    hand = Hand(solver_verifier)
    config = json.dumps({**json.loads(CONFIG), "decoys": decoys})
    [end] = hand.start("solver_verifier", agent_config=config)

    trajectory = hand.end(end)
    assert (trajectory.status, trajectory.code) == ("failed", "bad_config")


def test_a_missing_second_policy_fails_the_rollout_with_the_reason() -> None:
    for config in ("", '{"policies": 3}', '{"policies": {"verifier": 7}}'):
        hand = Hand(solver_verifier)
        [end] = hand.start("solver_verifier", agent_config=config)
        trajectory = hand.end(end)
        assert (trajectory.status, trajectory.code) == ("failed", "bad_config")
        assert "[policies.verifier]" in trajectory.reason
