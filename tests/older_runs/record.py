"""Record a run and a log as they are written now, to be read by all future code.

Run from the root of the release that is recorded, whose `tests.support` plays both:
`PYTHONPATH=. python PATH/record.py RUN.json.gz LOG.json.gz`. What was recorded is never written
over: it stands for what lies on brokers and disks.
"""

import base64
import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

PLACE = Path("/tmp/rollcall-recorded-run")
"""Where the run was; whoever reads the record puts it elsewhere."""
STEPS = 2
"""Taken, of four; then it was killed."""
SEED, ROLLOUTS = 3, 24
"""Of the log, whose workers are killed: of programs and agents, with quotas and requests twice."""


def recipe(text: str) -> str:
    """The tiny recipe, with as little to keep as there may be."""
    changed = {
        "group_size = 4": "group_size = 2",
        "n_embd = 16": "n_embd = 4",
        "n_head = 2": "n_head = 1",
        "seeds = [5000, 5006]": "seeds = [5000, 5002]",
        "every = 2": "every = 1",
    }
    for ours, theirs in changed.items():
        assert ours in text, ours
        text = text.replace(ours, theirs)
    return text


def record_run(out: Path) -> None:
    from tests.support.tiny_run import RECIPE, World

    shutil.rmtree(PLACE, ignore_errors=True)
    world = World(PLACE, recipe(RECIPE))
    world.train(world.trainer(), steps=STEPS)
    body = {"run_id": world.folder.run_id, "policy_id": world.folder.policy_id, "seed": 3}
    (world.folder.directory / "run.json").write_text(json.dumps({**body, "starts": []}))
    record = {
        "place": str(PLACE),
        "folder": str(world.folder.directory.relative_to(PLACE)),
        "files": dict(sorted(_files(PLACE).items())),
    }
    _write(out, world, record)
    shutil.rmtree(PLACE)


def record_log(out: Path) -> None:
    from tests.support.chaos_schedule import AGENTS, Chaos

    programs = [name for name in AGENTS if not name.startswith("tests.support.")]
    chaos = Chaos(
        SEED,
        rollouts=ROLLOUTS,
        programs=programs,  # those whose code never changes
        again=0.02,
        hosted=0.3,
        limited=0.02,
        quotas=(0, 2),
    )
    chaos.run()
    chaos.check()
    _write(out, chaos.rig, {})


def _write(out: Path, history: Any, record: dict[str, Any]) -> None:
    log = history.log
    record |= {
        "schemas": history.codec.registry._texts,
        "topics": {name: _partitions(log, name) for name in sorted(log.topics)},
        "commits": [
            [group, *tp, *committed[:2]]
            for group, held in sorted(log.groups.items())
            for tp, committed in sorted(held.committed.items())
        ],
    }
    out.write_bytes(gzip.compress(json.dumps(record, sort_keys=True).encode(), mtime=0))


def _partitions(log: Any, topic: str) -> list[list[Any]]:
    """Offset, time, key, value and headers of every record, by partition."""
    found: list[list[Any]] = [[] for _ in range(log.partitions(topic))]
    for number in range(len(found)):
        records, _ = log.read(topic, number, 0, 1_000_000)
        for each in records:
            headers = [[name, _text(value)] for name, value in each.headers or ()]
            place = each.offset, each.timestamp_ms
            found[number].append([*place, _text(each.key), _text(each.value), headers])
    return found


def _files(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): base64.b64encode(path.read_bytes()).decode()
        for path in directory.rglob("*")
        if path.is_file() and "cache" not in path.parts
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


if __name__ == "__main__":
    record_run(Path(sys.argv[1]))
    record_log(Path(sys.argv[2]))
