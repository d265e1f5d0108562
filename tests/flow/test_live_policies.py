"""A live run of two policies while trainers, servers and whole policies come and go by SIGKILL."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.compose.cluster import Cluster
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.runs.retraining import retrain_and_tell
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.consumers.audit.audit import audit
from rollcall.producers import provision
from rollcall.producers.submit import Submitter
from rollcall.schemas.messages import Event, ModelAnswered, TrainStep, Trajectory
from rollcall.schemas.packed import ids_of
from rollcall.schemas.topics import wanted
from tests.support.command_line import addresses, rollcall
from tests.support.crew import Crew, everything
from tests.support.two_policies import RECIPE
from tests.support.waiting import until

pytestmark = pytest.mark.broker
STEPS = 8
TEXT = RECIPE.replace("steps = 2", f"steps = {STEPS}")


class Live:
    """The run, its workers, and the progress of both policies."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        folder = run_folder.create(cluster.settings.state(), parse_recipe(TEXT, "pair"), TEXT, 3)
        ids = [*(part.policy_id for part in folder.parts()), "helper"]
        topics = wanted(cluster.settings.prefix, ids, partitions=4)
        provision.apply(cluster.admin, cluster.registry, topics)
        self.solver: RunFolder = run_folder.begin(folder, cluster)
        [self.verifier] = self.solver.others()
        self.crew = Crew(cluster, directory)
        self.reader = cluster.log.reader([cluster.topics.train_steps])
        self.taken = {part.policy_id: 0 for part in self.solver.parts()}
        self.newest = dict(self.taken)

    def begin(self) -> None:
        for role in ("agents", "environments"):
            self.crew.start(role)
        for number, part in enumerate((self.solver, self.verifier), 1):
            self.serve(part, number)
            self.train(part, number)
            self.score(part, number)

    def serve(self, part: RunFolder, number: int) -> str:
        return self.crew.start("models", number, "--run", part.name)

    def train(self, part: RunFolder, number: int) -> str:
        return self.crew.start("training", number, "--run", part.name)

    def score(self, part: RunFolder, number: int) -> str:
        scorers = [word for name in part.recipe.scorers for word in ("--scorer", name)]
        return self.crew.start("rewards", number, *scorers, "--scoring-id", part.recipe.scoring_id)

    def reached(self, steps: int, *parts: RunFolder) -> bool:
        for record in self.reader.poll(0.05):
            step = self.cluster.codec.decode(record.value, TrainStep)
            self.taken[step.policy_id] = max(self.taken[step.policy_id], step.step)
            self.newest[step.policy_id] = max(self.newest[step.policy_id], step.version)
        return all(self.taken[part.policy_id] >= steps for part in parts or self.solver.parts())

    def until(self, steps: int, *parts: RunFolder) -> None:
        """Wait for so many steps of these policies, or of both."""
        until(lambda: self.reached(steps, *parts) or bool(self.crew.dead()), 120, self.state)
        assert not self.crew.dead(), self.crew.dead()

    def state(self) -> str:
        words = {name: self.crew.words(name)[-600:] for name in self.crew.processes}
        return f"{self.taken}: {words}"

    def answers_of(self, name: str) -> Iterator[ModelAnswered]:
        """The answers of one model server."""
        for record in everything(self.cluster, self.cluster.topics.events):
            event = self.cluster.codec.decode(record.value, Event)
            if event.written_by == name and isinstance(event.body, ModelAnswered):
                yield event.body


@pytest.fixture
def live(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Live]:
    made = Live(make_cluster(), tmp_path)
    made.begin()
    yield made
    made.crew.close()


def helped(live: Live) -> Trajectory:
    """A policy that no run knows is added, asked once, and removed."""
    name = live.crew.start("models", 9, "--policy", "helper", "--script", live.crew.script)
    template = live.solver.recipe.template("alone", "helper")
    config = template.agent_config.replace(live.solver.policy_id, "helper")
    asked = replace(template, rollout_id="helped", agent_config=config, purpose="try")
    cluster = live.cluster
    publisher = cluster.log.publisher()
    Submitter(publisher, cluster.codec, cluster.topics, source="test").publish(asked)
    assert publisher.flush(30) == 0
    found: list[Trajectory] = []

    def ended() -> bool:
        records = everything(cluster, cluster.topics.trajectories)
        messages = (cluster.codec.decode(record.value, Trajectory) for record in records)
        found[:] = [each for each in messages if each.rollout_id == "helped"]
        return bool(found)

    until(ended, 60, live.state)
    live.crew.kill(name)
    return found[0]


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_trainers_servers_and_policies_come_and_go_without_loss(live: Live, tmp_path: Path) -> None:
    # Given a run whose policies both learn
    live.until(2)

    # When the solver has no server for a while, and then another one
    live.crew.kill("models-1")
    started_at = live.newest[live.solver.policy_id]
    late = live.serve(live.solver, 3)
    live.until(live.taken[live.solver.policy_id] + 2, live.solver)
    assert_caught_up(live, late, started_at)

    # And a trainer stands by for the one that is killed
    live.train(live.verifier, 4)
    live.crew.kill("training-2")
    live.until(live.taken[live.verifier.policy_id] + 1, live.verifier)

    # And the verifier is gone for good, with all that it had, and comes back in other processes
    for name in ("models-2", "training-4", "rewards-2"):
        live.crew.kill(name)
    helper = helped(live)
    live.serve(live.verifier, 5)
    live.train(live.verifier, 5)
    live.score(live.verifier, 5)
    live.until(STEPS, live.solver)
    ended = [live.crew.processes[name] for name in ("training-1",)]
    until(lambda: all(each.poll() is not None for each in ended), 60, live.state)

    # Then the result is that of an undisturbed run
    assert helper.status in ("finished", "failed")
    steps = [
        live.cluster.codec.decode(record.value, TrainStep)
        for record in everything(live.cluster, live.cluster.topics.train_steps)
    ]
    for part in live.solver.parts():
        own = {step.step for step in steps if step.policy_id == part.policy_id}
        # What was in the air when a whole policy went is stale for it when it is back.
        assert sorted(own) == list(range(1, max(own) + 1))
        assert max(own) == STEPS if part is live.solver else max(own) >= STEPS - 3
        assert_trains_again(live.cluster, part, max(own))
    done = rollcall("verify", cwd=tmp_path, **addresses(live.cluster))
    assert done.returncode == 0, done.stdout
    assert audit(live.cluster).breaches == []


def assert_caught_up(live: Live, server: str, version: int) -> None:
    """A late server has answered, and nothing by weights older than were there when it came."""
    sampled = [ids_of(answer.versions) for answer in live.answers_of(server)]
    assert sampled
    assert min(int(versions.min()) for versions in sampled if len(versions)) >= version


def assert_trains_again(cluster: Cluster, part: RunFolder, last: int) -> None:
    """The bits of every step equal those of the record, for every trainer."""
    threads = cluster.settings.training.threads
    report = retrain_and_tell(
        cluster, part.trained(), (1, last), version=None, threads=threads, tell=print
    )
    assert report["differing"] == []
