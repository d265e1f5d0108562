"""What the README shows is run as it stands there."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compose.cluster import Cluster
from compose.runs.recipe import parse_recipe
from compose.settings import Settings
from compose.workers.build import Workshop
from consumers.log.memory_log import MemoryLog
from inference.scripted import ScriptedEngine
from producers.submit import Submitter
from schemas.codec import Codec, LocalRegistry
from schemas.messages import RolloutRequest, ScoredTrajectory, Task
from schemas.topics import Topics, manifest, wanted
from tests.support.crew import Crew

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.broker
def test_a_client_that_knows_nothing_of_ours_publishes_and_reads_its_score(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    # Given a policy that is served, and the README's program in a folder of its own
    cluster = make_cluster("policy", prefix="rl.")
    program = next(block for block in blocks("python") if "AvroSerializer" in block)
    assert not re.search(r"^(from|import) (schemas|producers|consumers|compose)", program, re.M)
    (tmp_path / "foreign.py").write_text(program)
    crew = Crew(cluster, tmp_path, "policy")
    crew.start_all()

    # When it is run
    try:
        done = subprocess.run(
            [sys.executable, "foreign.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            env={
                **os.environ,
                "BOOTSTRAP": cluster.bootstrap_servers,
                "REGISTRY": cluster.registry_url,
            },
        )
    finally:
        crew.close()

    # Then it has read what came of its request
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("finished ")
    assert "'content': 's7'" in done.stdout


def test_the_readmes_program_environment_and_scorer_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given the README's own code as a user's module
    code = [block for block in blocks("python") if "AvroSerializer" not in block]
    (tmp_path / "readme_code.py").write_text("\n".join(code))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    topics = Topics("m.")
    log = MemoryLog(wanted("m.", ["p"], partitions=2))
    shop = Workshop(log, Codec(LocalRegistry()), topics, Settings(), watched=False)
    loops = [
        shop.agents("a"),
        shop.models("m", ScriptedEngine("p", lambda call: "3" if call.position == 1 else "33")),
        shop.environments("e"),
        shop.rewards("r", ["environment_return", "readme_code:short_answers*0.5"], "both"),
    ]

    # When a rollout of it is asked for
    task = Task("readme_code:Guess", seed=13)
    request = RolloutRequest("one", task, agent="readme_code:ask_twice", policy_id="p")
    Submitter(log.publisher(), shop.codec, topics).publish(request)
    for _ in range(40):
        for loop in loops:
            loop.turn(0.0)

    # Then both questions were asked, the shorter answer acted, and both scorers judged
    (record,) = log.all(topics.scored)
    scored = shop.codec.decode(record.value, ScoredTrajectory)
    assert scored.trajectory.result == "3: 1.0"
    assert scored.trajectory.model_calls == 2
    assert scored.total == pytest.approx(1.0 + 0.5 / (1 + scored.trajectory.sampled_tokens))


def test_the_readmes_recipe_is_one() -> None:
    (text,) = blocks("toml")

    recipe = parse_recipe(text, "README")

    assert recipe.evaluation.goal == 0.9


def test_the_readmes_topic_table_is_the_manifests() -> None:
    rows = re.findall(r"^\| `([a-z.]+)[<>.a-z]*` \|.*\| ([a-z_ ]+) \|$", README, flags=re.M)

    found = {name.rstrip("."): key for name, key in rows}
    assert found == {spec.name: spec.key for spec in manifest()}


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len(README.splitlines()) <= 300
