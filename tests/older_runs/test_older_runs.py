"""A recorded run is resumed, trained again and evaluated by today's code; a log is verified."""

import base64
import gzip
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fastavro
import pytest
import torch

from rollcall.compose.runs import run_folder
from rollcall.compose.runs.retraining import retrain_and_tell, what_if
from rollcall.compose.workers.served_policy import run_engine
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.history.reading.ranges import Range
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.history.versions.evaluation import Bootstrap, evaluate
from rollcall.consumers.history.versions.version_results import results_of
from rollcall.consumers.log.memory_log import MemoryLog
from rollcall.schemas.codec import PREFIX, Codec, LocalRegistry
from rollcall.schemas.topics import Topics
from tests.support.tiny_run import World

HERE = Path(__file__).parent
RUNS = sorted(HERE.glob("run-*.json.gz"))
LOGS = sorted(HERE.glob("log-*.json.gz"))
TAKEN = 2
"""Steps, when the run was killed."""
Change = Callable[[str, bytes | None], bytes | None]
"""Of a topic's name and a value."""


class Older(World):
    """A run as an older release has left it, on a log and a disk, somewhere else."""

    def __init__(self, directory: Path, path: Path) -> None:
        record = recorded(path)
        for name, body in record["files"].items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(base64.b64decode(body))
        folder = run_folder.load(directory / record["folder"])

        def here(topic: str, value: bytes | None) -> bytes | None:
            of_version = topic == "m.policy.versions" and value is not None
            return moved(cast(bytes, value), record, directory) if of_version else value

        log = log_of(record, here)
        self.open(directory, folder, log, codec_of(record))
        self.loops = [
            self.factory.models("models", run_engine(folder, self.settings)),
            *self.crew(),
        ]


def recorded(path: Path) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(gzip.decompress(path.read_bytes())))


def codec_of(record: dict[str, Any]) -> Codec:
    registry = LocalRegistry()
    for text in record["schemas"]:
        registry.writer_id("", text)
    return Codec(registry)


def log_of(record: dict[str, Any], change: Change = lambda topic, value: value) -> MemoryLog:
    """The recorded log: records at their offsets and times, and the groups' commits."""
    log = MemoryLog()
    for topic, partitions in record["topics"].items():
        log.create(topic, len(partitions))
        for number, held in enumerate(partitions):
            for offset, at_ms, key, value, headers in held:
                while log.topics[topic][number].end < offset:
                    log.hole(topic, number)
                log.wall = lambda at_ms=at_ms: (at_ms + 0.5) / 1000  # type: ignore[misc]
                named = [(name, bytes_of(text)) for name, text in headers]
                log.append(topic, bytes_of(key), change(topic, bytes_of(value)), number, named)
    for group, topic, number, offset, metadata in record["commits"]:
        log.group(group).committed[topic, number] = offset, metadata
    log.wall = time.time
    return log


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


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


def named(path: Path) -> str:
    return path.name.partition(".")[0]


@pytest.fixture(params=RUNS, ids=named)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return Older(tmp_path, request.param)


def test_a_run_and_a_log_of_the_release_before_exist() -> None:
    assert RUNS
    assert LOGS


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


@pytest.mark.parametrize("path", [*RUNS, *LOGS], ids=named)
def test_verify_accepts_a_recorded_log(path: Path) -> None:
    record = recorded(path)
    log, codec = log_of(record), codec_of(record)
    topics = Topics(next(iter(record["topics"])).partition(".")[0] + ".")

    report = audit(
        SimpleNamespace(log=log, codec=codec, topics=topics),  # type: ignore[arg-type]
        drained=path in LOGS,
    )

    assert [breach.text for breach in report.breaches] == []
    assert report.accepted >= (24 if path in LOGS else 8)
    assert report.ended == report.accepted or path in RUNS
    assert report.not_run_again == 0
    assert not report.unreadable


def test_verify_finds_the_harm_in_a_recorded_log() -> None:
    record = recorded(LOGS[0])
    log, codec = log_of(record), codec_of(record)
    topics = Topics("t.")
    held = log.topics[topics.trajectories][0]
    held.records[0] = None

    report = audit(SimpleNamespace(log=log, codec=codec, topics=topics), drained=True)  # type: ignore[arg-type]

    assert report.breaches
