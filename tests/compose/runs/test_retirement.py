"""A run that is over leaves nothing behind but its history."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rollcall.compose.cluster import Cluster
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.listing import remains_of, remove
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.settings import Settings
from rollcall.compose.workers.run_trainer import sole_trainer
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.log.protocols import Held
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import RolloutRequest, Task, TrainStep
from tests.support.command_line import addresses, refused, rollcall
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster

CALLS = "t.model.calls.p"


@pytest.fixture
def cluster(tmp_path: Path) -> MemoryCluster:
    """A run with ended rollouts, without workers, that took one step."""
    made = MemoryCluster(settings=Settings(prefix="t.", state_dir=tmp_path))
    made.hire(lambda call: "left")
    for number in range(3):
        made.ask(of_run("run", f"r{number}"))
    made.finish()
    leave(made)
    step = TrainStep(POLICY, "run", 1, 1, 0, (), {}, {}, "v1", "0" * 64)
    topic = made.topics.train_steps
    made.log.append(topic, POLICY.encode(), made.codec.encode(topic, step))
    return made


def of_run(run_id: str, rollout_id: str) -> RolloutRequest:
    return RolloutRequest(rollout_id, Task(CORRIDOR), policy_id=POLICY, run_id=run_id)


def leave(cluster: MemoryCluster) -> None:
    for worker in cluster.log.crew:
        worker.stop()
    cluster.log.crew = ()


def refusal(cluster: MemoryCluster, name: str = "run", *, folder: bool = False) -> str:
    with pytest.raises(Refused) as told:
        remains_of(cluster, name, folder=folder)  # type: ignore[arg-type]
    return str(told.value)


def test_remains_of_a_run_are_listed_and_nothing_is_removed(cluster: MemoryCluster) -> None:
    left = remains_of(cluster, "run", folder=False)  # type: ignore[arg-type]

    assert left.lines() == [f"topic {CALLS}, 3 partitions", "group t.models.p"]
    assert CALLS in cluster.log.topics
    assert "t.models.p" in cluster.log.groups


def test_history_still_verifies_after_topic_and_groups_are_removed(
    cluster: MemoryCluster,
) -> None:
    remove(cluster, remains_of(cluster, "run", folder=False))  # type: ignore[arg-type]

    assert CALLS not in cluster.log.topics
    assert "t.models.p" not in cluster.log.groups
    assert {"t.agents", "t.environments", "t.rewards.default"} <= cluster.log.groups.keys()
    report = audit(cluster, drained=True)
    assert (report.ok, report.ended) == (True, 3)
    assert remains_of(cluster, "run", folder=False).lines() == []  # type: ignore[arg-type]


def test_run_with_an_open_rollout_is_refused(cluster: MemoryCluster) -> None:
    cluster.hire(lambda call: "left")
    cluster.finish()
    cluster.start(of_run("run", "late"), cluster.log.bounds(cluster.topics.requests)[0][1])
    leave(cluster)

    assert "1 rollouts of run 'run' are open (late)" in refusal(cluster)


def test_run_with_an_unstarted_request_is_refused(cluster: MemoryCluster) -> None:
    cluster.ask(of_run("run", "asked"))

    assert "open (asked)" in refusal(cluster)


def test_served_policy_is_refused_by_the_name_of_the_server(
    cluster: MemoryCluster,
) -> None:
    cluster.hire(lambda call: "left")
    cluster.finish()

    assert "serve 'p'; `rollcall drain a worker` first" in refusal(cluster)


def test_unknown_run_is_refused_with_the_nearest(cluster: MemoryCluster) -> None:
    assert "did you mean 'run'" in refusal(cluster, "runn")


def test_folder_option_is_refused_for_a_run_without_a_folder(cluster: MemoryCluster) -> None:
    assert "leave --folder out" in refusal(cluster, folder=True)


@pytest.mark.broker
def test_run_is_retired_with_its_folder_unless_it_trains(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster()
    settings = cluster.settings
    recipe, text = load_recipe("lake-any-start")
    made = run_folder.create(settings.state(), recipe, text, seed=1)
    where = addresses(cluster)
    made_topics = rollcall(
        "topics", "apply", "--policy", made.policy_id, "--partitions", "4", cwd=tmp_path, **where
    )
    assert made_topics.returncode == 0, made_topics.stderr
    folder = run_folder.begin(made, cluster)
    group = cluster.topics.group("models", folder.policy_id)
    source = cluster.log.source(group, [cluster.topics.calls(folder.policy_id)], Idle())
    source.poll(10.0)
    retire = ("runs", "retire", folder.run_id, "--folder", "--yes")

    with sole_trainer(folder.directory, lambda: False):
        training = refused(rollcall(*retire, cwd=tmp_path, **where))
    source.close()
    done = rollcall(*retire, cwd=tmp_path, **where)

    assert "is training" in training
    assert done.returncode == 0, done.stderr
    assert f"removed folder {folder.directory}" in done.stdout
    assert not folder.directory.exists()
    assert cluster.topics.calls(folder.policy_id) not in cluster.admin.partitions()


class Idle:
    """A member of a group that reads nothing by itself."""

    def assigned(self, held: Held) -> int:
        return held.committed or held.log_start

    def revoked(self, partitions: object) -> None: ...

    def lost(self, partitions: object) -> None: ...
