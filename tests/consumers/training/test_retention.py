"""Removal of a run's weights and checkpoints during training, by the log's clock."""

import base64
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rollcall.consumers.agents.watermark import Watermark
from rollcall.consumers.log.protocols import Commit
from rollcall.consumers.loop.scoring_retirement import retired_word
from rollcall.consumers.training import retention
from rollcall.consumers.training.resumption import scored_at
from rollcall.schemas.errors import Refused, Unavailable
from rollcall.schemas.messages import (
    Event,
    Limits,
    RolloutFinished,
    RolloutRequest,
    RolloutStarted,
    ScoredTrajectory,
    Task,
)
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.rules.samples import versions_of
from rollcall.trainer.weights import weights_files
from rollcall.trainer.weights.publication import Publishing
from rollcall.trainer.weights.weights_needs import YOUNG_S
from tests.support.changed_config import changed
from tests.support.journals import sampled_by
from tests.support.scored_trajectories import scored
from tests.support.staged_run import CONFIG, SCORING, Stage

STEPS = 9
LONG = changed(CONFIG, steps=STEPS, checkpoint_keep_every=0)
STEP_S = 300.0
LEFT = [STEPS - 3, STEPS - 2, STEPS - 1, STEPS]
"""What is left where nothing but the run itself needs any."""


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LOOK_EVERY_S", 0.0)


def staged(directory: Path, **given: object) -> Stage:
    """A stage with a log clock that stands still."""
    stage = Stage(directory, **{"config": LONG, **given})  # type: ignore[arg-type]
    pass_time(stage, 0.0)
    return stage


def pass_time(stage: Stage, seconds: float) -> None:
    now = stage.log.wall() + seconds
    stage.log.wall = lambda: now


def train(stage: Stage, steps: int, *, restarts: bool = False) -> None:
    """Each step takes five minutes of the log."""
    while stage.trainer.learner.steps_done < steps:
        pass_time(stage, STEP_S)
        stage.train(stage.trainer.learner.steps_done + 1)
        if restarts:
            stage.begin()


def versions(stage: Stage) -> list[int]:
    return [file.version for file in weights_files.files_in(stage.trainer.run.weights)]


def say(stage: Stage, body: object, attempt: int = 1) -> None:
    event = Event("other", attempt, 0, 0, b"", b"", "somebody", body)  # type: ignore[arg-type]
    value = stage.codec.encode(stage.topics.events, event)
    stage.log.append(stage.topics.events, b"other", value)


def start(timeout_s: float = 86_400.0) -> RolloutStarted:
    limits = Limits(rollout_timeout_s=timeout_s)
    return RolloutStarted(RolloutRequest("other", Task(), policy_id="policy", limits=limits), 0, 0)


def test_unneeded_versions_are_removed_after_ten_minutes_of_log_time(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    stage.train(STEPS)
    assert versions(stage) == [*range(STEPS + 1)]  # no time has passed

    other = staged(tmp_path / "other")
    train(other, STEPS)

    # The newest two, what is younger than ten minutes, what three checkpoints are of, and what
    # the oldest of them has not trained on
    assert YOUNG_S == 600
    assert versions(other) == LEFT
    assert [*checkpoints.kept(tmp_path / "other" / "checkpoints")] == versions(other)[1:]
    kept = [step.metrics["kept_bytes"] for step in other.steps()]
    assert kept[0] > 0
    assert kept[-1] < 1.1 * kept[-3]


def test_restarts_after_each_step_keep_the_same_versions(tmp_path: Path) -> None:
    once, often = staged(tmp_path / "once"), staged(tmp_path / "often")
    for stage in (once, often):
        say(stage, start())
        say(stage, sampled_by(3))
    train(once, STEPS)
    train(often, STEPS, restarts=True)

    assert versions(once) == versions(often) == [3, *LEFT]


def ended_with(version: int, **request: str) -> ScoredTrajectory:
    """A scored trajectory of the other rollout, sampled by a version."""
    made = scored("other", version=version)
    asked = RolloutRequest("other", Task(), policy_id="policy", **request)
    return replace(made, trajectory=replace(made.trajectory, request=asked))


def send_trajectory(stage: Stage, version: int) -> Commit:
    """The agents write it and commit beyond its end; return the commit of its scoring."""
    topics, value = stage.topics, stage.codec.encode
    number, at = stage.log.append(
        topics.trajectories, b"other", value(topics.trajectories, ended_with(version).trajectory)
    )
    end = stage.log.bounds(topics.events)[number][1]
    word = Watermark(end).write()
    stage.log.commit_for(topics.group("agents"), [Commit(topics.events, number, end, word)])
    return Commit(topics.trajectories, number, at + 1, "")


def scorers_commit(stage: Stage, commit: Commit, scoring_id: str = SCORING) -> None:
    stage.log.commit_for(stage.topics.group("rewards", scoring_id), [commit])


def announce_again(stage: Stage) -> None:
    """The log's clock is the time of the last announcement."""
    said = stage.log.all(stage.topics.versions)[-1]
    stage.log.append(stage.topics.versions, b"somebody else", said.value)


def test_versions_of_an_open_rollout_stay_until_its_trajectory_is_scored(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    say(stage, start())
    train(stage, 2)
    say(stage, sampled_by(2))
    train(stage, 6)
    say(stage, RolloutFinished("finished"), attempt=0)  # of an older attempt: it ends nothing
    assert versions(stage) == [2, 3, 4, 5, 6]

    say(stage, RolloutFinished("finished"))  # by a worker that dies before it writes the result
    train(stage, 8)
    assert versions(stage) == [2, 5, 6, 7, 8]
    scorers_commit(stage, send_trajectory(stage, 2))
    train(stage, 9)
    assert versions(stage) == LEFT


def test_versions_of_an_unscored_trajectory_are_kept(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    say(stage, start())
    train(stage, 2)
    say(stage, sampled_by(2))
    say(stage, RolloutFinished("finished"))
    done = send_trajectory(stage, 2)  # readers of the journal begin behind it from now on
    train(stage, 6)
    assert versions(stage) == [2, 3, 4, 5, 6]

    scorers_commit(stage, done, "another")  # which the run does not train on
    train(stage, 7)
    assert versions(stage) == [2, 4, 5, 6, 7]
    above = "1;" + base64.b64encode(zlib.compress(b"\x01")).decode()
    scorers_commit(stage, replace(done, offset=done.offset - 1, metadata=f"{above}!r0"))
    train(stage, 9)
    assert versions(stage) == LEFT


def test_a_trajectory_of_a_retired_scoring_keeps_no_version(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    train(stage, 2)
    done = send_trajectory(stage, 1)
    scorers_commit(stage, replace(done, offset=0, metadata=retired_word("now", "it is over")))

    train(stage, STEPS)

    assert versions(stage) == LEFT


def test_versions_of_scored_but_unread_trajectories_are_kept(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    stage.train(6)
    topic, ours = stage.topics.scored, {"run_id": "run", "purpose": "train"}
    for version, asked in {
        0: {"run_id": "another", "purpose": "train"},
        1: {"run_id": "run", "purpose": "evaluate"},
        2: ours,
    }.items():
        stage.log.append(topic, b"x", stage.codec.encode(topic, ended_with(version, **asked)))
    rescored = replace(ended_with(1, **ours), scoring_id="another")
    stage.log.append(topic, b"x", stage.codec.encode(topic, rescored))
    pass_time(stage, YOUNG_S)
    stage.trainer.saver.retention.collect(frozenset())
    assert versions(stage) == [*range(7)]  # no record was announced: the log's clock stands still

    announce_again(stage)
    stage.trainer.saver.retention.collect(frozenset())
    assert versions(stage) == [2, 3, 4, 5, 6]


def test_versions_needed_by_an_older_checkpoint_are_kept(
    tmp_path: Path,
) -> None:
    again = changed(LONG, replay_ratio=0.5, replay_max_age=4, max_staleness=1)
    stage = staged(tmp_path, config=again)
    train(stage, STEPS)

    newest, second, third = reversed(checkpoints.kept(tmp_path / "checkpoints").values())
    held = {path.name: pool_of(stage, path) for path in (newest, second, third)}
    assert set.union(*held.values()) - held[newest.name], "the newest has all of it"
    assert set.union(*held.values()) <= {*versions(stage)}

    # And likewise for a restart from the second, since the newest is damaged
    (newest / "manifest.json").write_bytes(b"torn")
    stage.begin()
    assert stage.trainer.learner.steps_done == STEPS - 1
    assert pool_of(stage, second) <= {*versions(stage)}
    book = stage.trainer.buffer.replay.book()
    assert book == checkpoints.load(second).replay


def pool_of(stage: Stage, checkpoint: Path) -> set[int]:
    """Versions that a checkpoint's replay pool carries."""
    places = checkpoints.load(checkpoint).replay.places()
    found = scored_at(stage.log, stage.codec, stage.topics.scored, places)
    return {v for _, each in found for v in versions_of(each.trajectory.sequences or (), 0)}


def test_a_rollout_that_never_ends_is_released_after_its_deadline(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    say(stage, start(timeout_s=3 * STEP_S))
    say(stage, sampled_by(0))

    train(stage, 4)
    assert 0 in versions(stage)
    train(stage, 5)
    assert 0 not in versions(stage)


def pinned(version: int, rollout_id: str = "other") -> RolloutRequest:
    return RolloutRequest(rollout_id, Task(), policy_id="policy", policy_version=version)


def ask(stage: Stage, request: RolloutRequest) -> Commit:
    """Ask for a rollout; return the commit of an agents worker that has started it."""
    topic = stage.topics.requests
    value = stage.codec.encode(topic, request)
    number, offset = stage.log.append(topic, request.rollout_id.encode(), value)
    return Commit(topic, number, offset + 1, "")


def test_a_waiting_request_keeps_its_pinned_version(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    train(stage, 2)
    taken_up = ask(stage, pinned(1))
    train(stage, STEPS - 2, restarts=True)
    assert 1 in versions(stage)

    # It begins: the journal holds on to it from now on, for as long as it is held back
    say(stage, RolloutStarted(pinned(1), 0, 0))
    stage.log.commit_for(stage.topics.group("agents"), [taken_up])
    pass_time(stage, 10 * 86_400.0)
    train(stage, STEPS - 1)
    assert 1 in versions(stage)

    say(stage, RolloutFinished("finished"))
    train(stage, STEPS)
    assert 1 in versions(stage)
    scorers_commit(stage, send_trajectory(stage, 1))
    stage.trainer.saver.retention.collect(frozenset())
    assert 1 not in versions(stage)


def test_a_commit_beyond_the_topics_end_hides_no_request(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    train(stage, 2)
    ask(stage, pinned(1))
    far = [Commit(stage.topics.requests, number, 1_000_000, "") for number in range(2)]
    stage.log.commit_for(stage.topics.group("agents"), far)  # of a recreated topic

    train(stage, STEPS)

    assert versions(stage) == [1, *LEFT]


def test_commits_beyond_the_ends_of_recreated_topics_hide_nothing(
    tmp_path: Path,
) -> None:
    stage = staged(tmp_path)
    say(stage, start())
    train(stage, 2)
    say(stage, sampled_by(1))
    say(stage, RolloutFinished("finished"))
    done = send_trajectory(stage, 2)
    scorers_commit(stage, replace(done, offset=1_000_000))
    far = [
        Commit(stage.topics.events, number, 1_000_000, Watermark(999).write()) for number in (0, 1)
    ]
    stage.log.commit_for(stage.topics.group("agents"), far)

    train(stage, STEPS)

    assert versions(stage) == [1, 2, *LEFT]


def test_a_refused_request_keeps_no_version(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    train(stage, 2)
    refused = ask(stage, pinned(1))
    asked_of_another = replace(pinned(2, "foreign"), policy_id="elsewhere")
    ask(stage, asked_of_another)
    stage.log.commit_for(stage.topics.group("agents"), [refused])

    train(stage, STEPS)

    assert versions(stage) == LEFT


def test_versions_of_buffered_samples_are_kept(tmp_path: Path) -> None:
    stage = staged(tmp_path, config=changed(LONG, max_staleness=100))
    train(stage, 2)
    lone = next(r for r in stage.in_the_air() if r.purpose == "train")
    stage.end(lone)
    stage.ended += [r.rollout_id for r in stage.in_the_air() if r.group_id == lone.group_id]

    train(stage, STEPS)

    waiting = {sample.min_version for sample in stage.trainer.buffer.cacheable()}
    assert {*waiting, STEPS - 2, STEPS - 1, STEPS} <= {*versions(stage)}
    assert 2 in waiting
    assert not {STEPS - 5, STEPS - 4, STEPS - 3} & {*versions(stage)}


def test_a_clock_set_back_removes_no_version_too_early(tmp_path: Path) -> None:
    stage = staged(tmp_path)
    train(stage, 3)
    pass_time(stage, -86_400.0)

    stage.train(7)

    assert versions(stage) == [*range(8)]


def test_an_unavailable_log_keeps_all_versions_and_stops_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = staged(tmp_path)

    def away(self: object) -> None:
        msg = "no broker"
        raise Unavailable(msg)

    monkeypatch.setattr(type(stage.trainer.saver.retention.in_use), "announced", away)
    with capture_logs() as logs:
        train(stage, STEPS - 1)
    assert versions(stage) == [*range(STEPS)]
    assert "weights_not_cleared" in {entry["event"] for entry in logs}

    monkeypatch.undo()
    monkeypatch.setattr(retention, "LOOK_EVERY_S", 0.0)
    train(stage, STEPS)
    assert versions(stage) == LEFT


def test_a_size_bound_removes_older_checkpoints_and_keeps_the_newest(tmp_path: Path) -> None:
    free = staged(tmp_path / "free", config=changed(LONG, checkpoint_keep_every=1))
    train(free, STEPS)
    assert len(checkpoints.kept(free.directory / "checkpoints")) == STEPS + 1
    half = int(free.trainer.saver.retention.kept_bytes / 2)

    stage = staged(
        tmp_path / "bound",
        config=changed(LONG, checkpoint_keep_every=1),
        publishing=Publishing(keep_bytes=half),
    )
    with capture_logs() as logs:
        train(stage, STEPS)

    assert stage.trainer.saver.retention.kept_bytes <= half
    kept = [*checkpoints.kept(stage.directory / "checkpoints")]
    assert kept == [*range(kept[0], STEPS + 1)]
    assert 1 < len(kept) < STEPS
    assert "keep_bytes_exceeded" not in {entry["event"] for entry in logs}


def test_an_unreachable_size_bound_is_reported_once(tmp_path: Path) -> None:
    with capture_logs() as logs:
        stage = staged(tmp_path, publishing=Publishing(keep_bytes=10))
        stage.train(5)

    assert [entry["event"] for entry in logs].count("keep_bytes_exceeded") == 1
    assert [*checkpoints.kept(tmp_path / "checkpoints")] == [5]
    assert versions(stage) == [*range(6)]  # all of it is young
    assert stage.steps()[-1].metrics["kept_bytes"] > 10


def test_a_size_bound_below_one_version_and_checkpoint_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(Refused, match=r"keep_bytes is 4, .* takes 1 bytes .* give at least 5"):
        staged(tmp_path, publishing=Publishing(keep_bytes=4))

    assert not [*tmp_path.rglob("v*")]
