"""The examples on the documentation pages are run as printed."""

import importlib
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.compose.cluster import Cluster
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.services.embedded import Endpoints
from rollcall.compose.settings import KafkaSettings, ModelsSettings, RegistrySettings, Settings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.inference.scripted import ScriptedEngine
from rollcall.producers.submit import Submitter
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task, Trajectory
from rollcall.schemas.rules import choose
from rollcall.schemas.topics import Topics, wanted
from rollcall.trainer.rules.catalogue import FILTERS
from rollcall.trainer.rules.samples import Sample
from tests.support.command_line import ROOT
from tests.support.crew import everything
from tests.support.live_run import LiveRun
from tests.support.pages import blocks, script, users_code
from tests.support.tiny_run import RECIPE, World

BASH = ("bash", "-euc")
OPEN, GARBAGE = "waits-for-ever", b"{}"


@pytest.fixture
def live(services: Endpoints, tmp_path: Path) -> Iterator[LiveRun]:
    """A small run on the broker as the pages mean it: topics as they are without any option."""
    settings = Settings(
        state_dir=tmp_path / "state",
        kafka=KafkaSettings(bootstrap_servers=services.bootstrap_servers),
        registry=RegistrySettings(url=services.registry_url),
    )
    cluster = Cluster(services.bootstrap_servers, services.registry_url, settings)
    live = LiveRun(cluster)
    yield live
    live.close()


@pytest.mark.thorough
@pytest.mark.broker
@pytest.mark.timeout(500)
def test_documented_commands_and_foreign_client_work(live: LiveRun, tmp_path: Path) -> None:
    # Given the history of a small run, and its groups still at work
    to_try = blocks("sh", "README.md")[1]
    while_it_runs, day_after = blocks("sh", "compose/README.md")
    live.until(live.trainer.done)

    # When a client that knows nothing of ours asks for a rollout, then it reads its score
    (program,) = blocks("python", "producers/README.md")
    assert not re.search(r"^(from|import) (schemas|producers|consumers|compose|rollcall)", program)
    (tmp_path / "foreign.py").write_text(program)
    addresses = {"BOOTSTRAP": live.cluster.bootstrap_servers, "REGISTRY": live.cluster.registry_url}
    scored = live.beside(sys.executable, "foreign.py", cwd=tmp_path, **addresses)
    assert scored.startswith("finished ")
    assert "'content': 's7'" in scored

    # And the commands of the first page find the rollout that they submit, and the shipped tasks
    (line,) = blocks("json", "producers/README.md")
    (tmp_path / "requests.jsonl").write_text(line)
    rollout_id = json.loads(line)["rollout_id"]
    (tmp_path / "compose").symlink_to(ROOT / "compose")
    printed = live.beside(*BASH, script(to_try), cwd=tmp_path, ROLLOUT=rollout_id)
    assert rollout_id in printed
    assert "compose/recipes/repairs/sums" in printed

    # And a run is steered: one rollout of an unserved policy, and an unread bad record
    ask_for_what_nobody_serves(live)
    place = write_garbage(live.cluster)
    live.beside(
        *BASH, script(while_it_runs), cwd=tmp_path, resting="agents-1", ROLLOUT=OPEN, PLACE=place
    )
    live.until(lambda: ending(live.cluster, OPEN) == "cancelled")

    # And the day after all of it is read again
    live.beside(*BASH, script(day_after), cwd=tmp_path)


def ask_for_what_nobody_serves(live: LiveRun) -> None:
    """Publish a request, and let it proceed until its model call waits."""
    cluster = live.cluster
    publisher = cluster.log.publisher()
    request = RolloutRequest(OPEN, Task(prompt="?"), agent="single_turn", policy_id="away")
    Submitter(publisher, cluster.codec, cluster.topics).publish(request)
    assert publisher.flush(30) == 0
    live.until(lambda: bool(everything(cluster, cluster.topics.calls("away"))))


def write_garbage(cluster: Cluster) -> str:
    """Write an unreadable record to a topic; return its place in the form that `dlq skip` takes."""
    topic = cluster.topics.requests
    publisher = cluster.log.publisher()
    first = cluster.log.bounds(topic)[0][1]
    for _ in range(2):
        publisher.send(topic, None, GARBAGE, partition=0)
    assert publisher.flush(30) == 0
    return f"0@{first}-{first + 1}"


def ending(cluster: Cluster, rollout_id: str) -> str:
    """How a rollout ended; empty where it has not."""
    records = everything(cluster, cluster.topics.trajectories)
    found = (cluster.codec.decode(record.value, Trajectory) for record in records)
    return next((t.status for t in found if t.rollout_id == rollout_id), "")


@pytest.fixture
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """All code of the pages that a user would write, as a module of a user's."""
    (tmp_path / "code_of_the_pages.py").write_text("\n".join(users_code()))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return "code_of_the_pages"


def test_documented_program_environment_and_scorer_work(users_module: str, tmp_path: Path) -> None:
    # Given workers that know no more of them than their names
    topics = Topics("m.")
    log = MemoryLog(wanted("m.", ["p"], partitions=2))
    settings = Settings(state_dir=tmp_path / "state")
    factory = WorkerFactory(log, Codec(LocalRegistry()), topics, settings, watched=False)
    loops = [
        factory.agents("a"),
        factory.models("m", ScriptedEngine("p", lambda call: "3" if call.position == 1 else "33")),
        factory.environments("e"),
        factory.rewards("r", ["environment_return", f"{users_module}:short_answers*0.5"], "both"),
    ]

    # When a rollout of it is asked for
    task = Task(f"{users_module}:Guess", seed=13)
    request = RolloutRequest("one", task, agent=f"{users_module}:ask_twice", policy_id="p")
    Submitter(log.publisher(), factory.codec, topics).publish(request)
    for _ in range(40):
        for loop in loops:
            loop.turn(0.0)

    # Then both questions were asked, the shorter answer acted, and both scorers judged
    (record,) = log.all(topics.scored)
    scored = factory.codec.decode(record.value, ScoredTrajectory)
    assert scored.trajectory.result == "3: 1.0"
    assert scored.trajectory.model_calls == 2
    assert scored.total == pytest.approx(1.0 + 0.5 / (1 + scored.trajectory.sampled_tokens))


def test_documented_advantage_filter_and_loss_train(users_module: str, tmp_path: Path) -> None:
    rules = f"""
        [learner]
        advantage = "{users_module}:centred"
        loss = {{ name = "{users_module}:UNCLIPPED", power = 0.5 }}
    """
    world = World(tmp_path / "run", RECIPE.replace("[learner]", textwrap.dedent(rules)))

    world.train(world.trainer(), steps=1)

    (step,) = world.steps()
    assert step.metrics["clip_fraction"] == 0
    (scored, *_) = world.read(world.topics.scored, ScoredTrajectory)
    keep = choose("filters", f"{users_module}:mixed", FILTERS)
    failed, solved = (Sample(scored, 0, 0, 0, reward, 0, 1) for reward in (0.0, 1.0))
    assert keep([failed, solved])
    assert not keep([failed, failed])


def test_documented_recipe_and_settings_are_valid() -> None:
    recipe, settings = blocks("toml", "compose/README.md")

    assert parse_recipe(recipe, "README").evaluation.goal == 0.9
    models = ModelsSettings(**tomllib.loads(settings)["models"])
    assert models.engine == "vllm"
    assert models.python
