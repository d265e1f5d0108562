"""Two policies in one rollout: who is asked what, and what is told in the end."""

import json

from consumers.agents.solver_verifier import solver_verifier
from tests.support.journals import Hand

CONFIG = json.dumps({"policies": {"solver": "p", "verifier": "run-verifier"}})


def test_an_answer_that_is_believed_is_given() -> None:
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


def test_after_a_no_the_solver_hears_so_and_answers_once_more() -> None:
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


def test_without_a_second_policy_the_rollout_ends_with_the_reason() -> None:
    for config in ("", '{"policies": 3}', '{"policies": {"verifier": 7}}'):
        hand = Hand(solver_verifier)
        [end] = hand.start("solver_verifier", agent_config=config)
        trajectory = hand.end(end)
        assert (trajectory.status, trajectory.code) == ("failed", "bad_config")
        assert "[policies.verifier]" in trajectory.reason
