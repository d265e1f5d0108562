"""Record journals as they are written now, to be folded by all code to come.

Run from the repository's root when schemas were released:
`.venv/bin/python -m tests.journals.record`. What was recorded is never written over: it stands for
what lies on brokers.
"""

import base64
import hashlib
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random

import fastavro

from consumers.agents.fold import Effect
from schemas.codec import PREFIX, schema_text
from schemas.messages import Event, Trajectory
from tests.consumers.journals import CODEC, Dice
from tests.schemas.made import datum
from tests.schemas.release import versions

HERE = Path(__file__).parent
RECORD = "run `.venv/bin/python -m tests.journals.record`"
DICED = {"calm": (1, 0.0), "noisy": (2, 0.35), "stormy": (3, 0.6)}
"""Seed and share of noise of each journal."""
ROLLOUTS = 8


def folder() -> Path:
    """Where journals of the newest released schema of events lie."""
    return HERE / f"v{len(versions('Event'))}"


def digests(effects: Iterable[Effect], trajectory_schema: str) -> list[tuple[str, str]]:
    """Of every trajectory its id and the sha256 of its bytes under a schema that was released."""
    schema = fastavro.parse_schema(json.loads(trajectory_schema))
    found = []
    for effect in effects:
        if isinstance(effect, Trajectory):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, datum(effect))
            found.append((effect.rollout_id, hashlib.sha256(out.getvalue()).hexdigest()))
    return found


def recorded(seed: int, noise: float) -> dict[str, object]:
    """One partition as the dice wrote it, and what today's fold makes of it."""
    dice = Dice(Random(seed), ROLLOUTS, noise).live()
    records = []
    for entry in dice.entries:
        value = CODEC.encode("events", entry.event)
        schema_id = PREFIX.unpack_from(value)[1]
        text = base64.b64encode(value).decode()
        records.append([entry.offset, entry.at_ms, entry.event.rollout_id, text])
    trajectory_schema = schema_text(Trajectory)
    return {
        "schemas": {schema_id: schema_text(Event)},
        "trajectory_schema": trajectory_schema,
        "records": records,
        "trajectories": digests((effect for _, effect in dice.effects), trajectory_schema),
    }


def main() -> int:
    there = folder()
    if there.exists():
        print(f"{there.name} is recorded already and stays as it is", file=sys.stderr)
        return 1
    there.mkdir()
    for name, (seed, noise) in DICED.items():
        body = recorded(seed, noise)
        lines = ",\n".join(f"{json.dumps(key)}: {_lined(value)}" for key, value in body.items())
        (there / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")
        print(f"recorded {there.name}/{name}.json")
    return 0


def _lined(value: object) -> str:
    """Lists with an item a line, so that they can be looked at."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"


if __name__ == "__main__":
    sys.exit(main())
