"""Runs of every recorded release are resumed, trained again and evaluated by today's code."""

import base64
import gzip
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
import torch

from rollcall.compose.pages.retraining_page import retrain_and_tell
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.what_if_run import what_if
from rollcall.compose.workers.served_policy import run_engine
from rollcall.consumers.history.estimates import Bootstrap
from rollcall.consumers.history.evaluation import evaluate
from rollcall.consumers.history.ranges import Range
from rollcall.consumers.history.selection import Selection
from rollcall.consumers.history.version_results import results_of
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.schemas.codec import PREFIX, Codec, LocalRegistry
from tests.support.tiny_run import World

RUNS = sorted(Path(__file__).parent.glob("*.json.gz"))
TAKEN = 2
"""Steps, when the run was killed."""


class Older(World):
    """A run as an older release has left it, on a log and a disk, somewhere else."""

    def __init__(self, directory: Path, path: Path) -> None:
        record = json.loads(gzip.decompress(path.read_bytes()))
        for name, body in record["files"].items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(base64.b64decode(body))
        registry, log = LocalRegistry(), MemoryLog()
        for text in record["schemas"]:
            registry.writer_id("", text)
        folder = run_folder.load(directory / record["folder"])
        for topic, partitions in record["topics"].items():
            log.create(topic, len(partitions))
            for number, held in enumerate(partitions):
                for key, value, headers in held:
                    said = value and base64.b64decode(value)
                    if topic == "m.policy.versions":
                        said = moved(said, record, directory)
                    named = [(name, base64.b64decode(text)) for name, text in headers]
                    log.append(topic, base64.b64decode(key), said, number, named)
        self.open(directory, folder, log, Codec(registry))
        self.loops = [self.shop.models("models", run_engine(folder, self.settings)), *self.crew()]


def moved(value: bytes, record: dict[str, Any], directory: Path) -> bytes:
    """An announced version under the schema that it has, its weights where they are now."""
    number = int.from_bytes(value[1 : PREFIX.size], "big")
    schema = fastavro.parse_schema(json.loads(record["schemas"][number - 1]))
    body = fastavro.schemaless_reader(io.BytesIO(value[PREFIX.size :]), schema, None)
    text = json.dumps(body, default=_escaped).replace(record["place"], str(directory))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, json.loads(text, object_hook=_plain))
    return value[: PREFIX.size] + out.getvalue()


def _escaped(value: bytes) -> dict[str, str]:
    return {"bytes": base64.b64encode(value).decode()}


def _plain(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["bytes"]) if value.keys() == {"bytes"} else value


@pytest.fixture(params=RUNS, ids=lambda path: path.name.partition(".")[0])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return Older(tmp_path, request.param)


def test_run_of_an_older_release_exists() -> None:
    assert RUNS


def test_run_begun_by_an_older_release_continues_to_its_end(world: World) -> None:
    trainer = world.trainer()
    resumed = trainer.learner.steps_done

    world.train(trainer)

    assert resumed == TAKEN
    assert trainer.done()
    assert [step.step for step in world.steps()] == [1, 2, 3, 4]
    # The checkpoint names its weights where they were, so that they are mended and told again.
    assert sorted({version.version for version in world.versions()}) == [0, 1, 2, 3, 4]
    trained = [ref.rollout_id for step in world.steps() for ref in step.trajectories]
    assert len(trained) == len(set(trained))


def test_steps_of_an_older_release_are_trained_again(world: World) -> None:
    report = retrain_and_tell(
        world,  # type: ignore[arg-type]
        world.folder.trained(),
        (1, TAKEN),
        version=None,
        threads=torch.get_num_threads(),
        tell=print,
    )

    # Bits are the same on the machine that wrote them; elsewhere the sums have another order.
    assert [step["version"] for step in report["steps"]] == [1, 2]
    assert all(step["difference"] <= 1e-6 for step in report["steps"])
    assert not report["differing"] or report["otherwise"]


def test_older_run_supports_evaluate_and_what_if(world: World) -> None:
    found = evaluate(Selection(world, Range()), "evaluate", 1.0)  # type: ignore[arg-type]
    rows, _ = results_of(found.scored_by(), Bootstrap(50))

    report = what_if(
        world,  # type: ignore[arg-type]
        world.folder,
        (1, TAKEN),
        ["learner.loss.name=gspo", "learner.aggregate=seq_mean_token_mean"],
        "",
        version=None,
        threads=1,
        out=None,
        tell=print,
        playing=world.settings,
    )

    assert [(row.version, row.tasks) for row in rows][:1] == [(0, 2)]
    assert set(report["held_out"]) == {"then", "now"}
