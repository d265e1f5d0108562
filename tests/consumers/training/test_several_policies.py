"""Two policies in one rollout: each trains on its own tokens, one of them asks for the rollouts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.consumers.audit.audit import audit
from rollcall.consumers.training.other_policies import STARVED_S, OtherPolicies
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.admission import AdmissionRule
from rollcall.schemas.messages import PolicyVersion, RolloutRequest, Task, Trajectory, WeightsFile
from rollcall.schemas.packed import pack_ids
from rollcall.trainer.rules.samples import versions_of
from tests.support.rig import Rig, source_of
from tests.support.two_policies import Pair


def done(pair: Pair, steps: int) -> Callable[[], bool]:
    return lambda: all(len(pair.steps(part)) >= steps for part in pair.parts)


def test_both_policies_learn_their_own_tokens_of_the_same_rollouts(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    solver, verifier = (pair.trainer(part) for part in pair.parts)

    pair.train(solver, verifier, until=lambda: solver.done() and verifier.done())

    pair.close()
    assert [s.step for s in pair.steps(pair.folder)] == [1, 2]
    assert [s.step for s in pair.steps(pair.other)] == [1, 2]
    both = {pair.folder.policy_id, pair.other.policy_id}
    ends = pair.read(pair.topics.trajectories, Trajectory)
    trained = [each for each in ends if each.request.purpose == "train"]
    assert {each.status for each in trained} == {"finished"}
    assert {frozenset(each.policies) for each in trained} == {frozenset(both)}
    told = pair.steps(pair.other)[0].metrics
    # One token a verdict; the solver's answers are in the same rollouts, and not the verifier's.
    assert told["tokens"] == told["trajectories"] == 4
    assert audit(pair.factory, drained=True).breaches == []
    # Held-out rollouts are answered by the version that each of them had.
    asked = [each for each in ends if each.request.purpose == "evaluate"]
    assert [each.status for each in asked] == ["finished", "finished"], asked
    for each in asked:
        [(name, pinned)] = each.request.policy_versions.items()
        index = each.policies.index(name)
        assert name == pair.other.policy_id
        assert versions_of(each.sequences, index) == {pinned}


def test_replaced_trainers_and_servers_resume_at_their_last_step(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    solver, verifier = (pair.trainer(part) for part in pair.parts)
    pair.train(solver, verifier, until=done(pair, 1))

    # When both trainers and the verifier's server are gone, in the middle of it all
    solver, verifier = (pair.trainer(part) for part in pair.parts)
    source_of(pair.loops[pair.other.name]).kill()
    pair.loops[pair.other.name] = pair.server(pair.other)
    pair.train(solver, verifier, until=lambda: solver.done() and verifier.done())

    pair.close()
    for part in pair.parts:
        assert [step.step for step in pair.steps(part)] == [1, 2]
    versions = [
        (each.policy_id, each.version) for each in pair.read(pair.topics.versions, PolicyVersion)
    ]
    assert len(versions) == len(set(versions)) == 6
    assert audit(pair.factory, drained=True).breaches == []


def test_no_rollout_begins_before_every_policy_has_weights(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    solver = pair.trainer(pair.folder)

    for _ in range(5):
        pair.turn(solver)
    assert pair.log.all(pair.topics.requests) == []

    verifier = pair.trainer(pair.other)
    pair.train(solver, verifier, until=done(pair, 1))
    pair.close()


class Waits:
    """The barrier of a run beside two others, one of which takes four steps."""

    def __init__(self, *, barrier: bool = True) -> None:
        self.rig, self.now = Rig(), 0.0
        rule = AdmissionRule(2, 8, 100, 4)
        others = {"run-a": 0, "run-b": 4}
        run = TrainingRun(
            "run", "run", Path(), {}, "s", rule, others=others, barrier=barrier
        )  # fmt: skip
        rig = self.rig
        self.others = OtherPolicies(rig.log, rig.codec, rig.topics, run, lambda: self.now)

    def announce(self, policy_id: str, step: int, run_id: str = "run", version: int = 7) -> None:
        weights = WeightsFile("", "", 0, "", step)
        record = PolicyVersion(
            policy_id, version, -1, run_id, step, "", weights, pack_ids([1]), b""
        )  # fmt: skip
        self.rig.write(self.rig.topics.versions, policy_id, record, 0)
        self.others.follow()

    def granted(self, step: int, running: int = 0) -> int:
        return self.others.granted(5, 2, step, running)


def test_rollouts_wait_until_all_policies_are_at_the_same_step() -> None:
    waits = Waits()
    waits.announce("run-a", 1)
    waits.announce("run-b", 0)
    assert waits.granted(1, running=3) == 0

    waits.announce("run-b", 1)
    assert waits.granted(1) == 5
    assert (waits.granted(0), waits.granted(2)) == (0, 0)


def test_a_finished_policy_holds_back_no_other() -> None:
    waits = Waits()
    waits.announce("run-a", 9)
    waits.announce("run-b", 4)

    assert waits.granted(9) == 5


def test_policies_without_a_barrier_advance_independently() -> None:
    waits = Waits(barrier=False)

    assert waits.granted(9, running=3) == 5


def test_a_policy_starved_at_the_barrier_gets_one_batch() -> None:
    waits = Waits()
    waits.announce("run-a", 1)
    waits.announce("run-b", 0)

    for waits.now in (0.0, STARVED_S / 2):
        assert waits.granted(1, running=1) == 0
    waits.now = STARVED_S * 1.4
    assert waits.granted(1) == 0
    waits.now = STARVED_S * 1.6
    assert waits.granted(1) == 2
    assert waits.granted(1) == 0


def test_a_policy_with_a_lost_batch_holds_the_others_back_once() -> None:
    waits = Waits()
    waits.announce("run-a", 5)
    waits.announce("run-b", 4)
    waits.announce("run-a", 2)  # it is one behind our three, and no rollout is in the air
    waits.granted(3)
    waits.now = STARVED_S
    assert waits.granted(3) == 2

    waits.announce("run-a", 2)
    assert waits.granted(4) == 0  # a batch later it is further behind: it is only slow
    waits.announce("run-a", 3)

    assert waits.granted(4) == 5
    waits.announce("run-a", 4)
    assert (waits.granted(4), waits.granted(5)) == (5, 5)
    assert waits.granted(6) == 0


@pytest.mark.parametrize(("policy_id", "run_id"), [("run-c", "run"), ("run-a", "another")])
def test_foreign_announcements_are_ignored(policy_id: str, run_id: str) -> None:
    waits = Waits()

    waits.announce(policy_id, 3, run_id)
    waits.rig.log.append(waits.rig.topics.versions, b"run-a", b"rubbish", 0)
    waits.others.follow()
    waits.announce("run-a", 3, version=2**31 - 1)

    assert (waits.others.steps, waits.others.all_there()) == ({}, False)
    request = RolloutRequest("r", Task())
    assert waits.others.pinned(request) is request
    waits.announce("run-a", 3)
    waits.announce("run-b", 3)
    assert waits.others.all_there()
    pinned = replace(request, policy_versions={"run-a": 7, "run-b": 7})
    assert waits.others.pinned(request) == pinned
