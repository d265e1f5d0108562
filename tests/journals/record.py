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
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import fastavro

from rollcall.consumers.agents.fold.rollout import Output
from rollcall.consumers.agents.fork import Past, RecordedAnswer, RecordedObservation
from rollcall.schemas.avro_schemas import schema_text
from rollcall.schemas.codec import PREFIX
from rollcall.schemas.ids import call_seed
from rollcall.schemas.messages import Event, ModelAnswered, RolloutStarted, Trajectory
from tests.journals.programs import DICED as PROGRAMS
from tests.schemas.release import versions
from tests.support.avro_messages import datum
from tests.support.journals import CODEC, Dice, Entry, Hand, fold, request, world_of

HERE = Path(__file__).parent
RECORD = "run `.venv/bin/python -m tests.journals.record`"
DICED = {"calm": (1, 0.0), "noisy": (2, 0.35), "stormy": (3, 0.6)}
"""Seed and share of noise of each journal."""
ROLLOUTS = 8


def folder() -> Path:
    """Where journals of the newest released schema of events lie."""
    return HERE / f"v{len(versions('Event'))}"


def digests(effects: Iterable[Output], trajectory_schema: str) -> list[tuple[str, str]]:
    """Of every trajectory its id and the sha256 of its bytes under a schema that was released."""
    schema = fastavro.parse_schema(json.loads(trajectory_schema))
    found = []
    for effect in effects:
        if isinstance(effect, Trajectory):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, datum(effect))
            found.append((effect.rollout_id, hashlib.sha256(out.getvalue()).hexdigest()))
    return found


def diced(seed: int, noise: float) -> dict[str, object]:
    """A partition as the dice wrote it."""
    dice = Dice(Random(seed), ROLLOUTS, noise).live()
    return written(dice.entries)


def forked() -> dict[str, object]:
    """A rollout and its fork at turn 1, by hand."""
    hand = Hand()
    [reset] = hand.start(request("parent"))
    [call] = hand.show(reset, "a room")
    [step] = hand.say(call, "left")
    [call_2] = hand.show(step, "a hall")
    [step_2] = hand.say(call_2, "right")
    [end] = hand.show(step_2, "out", terminated=True)
    hand.end(end)
    said = hand.entries[2].event.body
    assert isinstance(said, ModelAnswered)
    past = Past(
        "react",
        "",
        call_seed("parent", 1, -1),
        1,
        (
            RecordedObservation(0, "a room", 0.0, False, False),
            RecordedAnswer(1, 0, "left", "", "stop", said.added_ids, said.token_ids),
            RecordedObservation(2, "a hall", 0.0, False, False),
        ),
    )
    fields = {"parent_rollout_id": "parent", "parent_position": 3}
    [reset] = hand.start(request("child", "fork", agent_config=past.config(), **fields))
    [step] = hand.show(reset, "a room")
    [live] = hand.show(step, "a hall")
    [step] = hand.say(live, "straight on")
    [end] = hand.show(step, "a wall", truncated=True)
    hand.end(end)
    return written(hand.entries)


def timed() -> dict[str, object]:
    """A rollout whose journal holds the time of its request, and its environment's durations."""
    hand = Hand()
    asked = request("timed")
    body = RolloutStarted(asked, 0, 0, requested_ms=hand.now_ms - 1500)
    [reset] = hand.read(Event.decision("timed", 1, "owner", body))
    hand.now_ms += 4000
    [call] = hand.show(reset, "a room", waited_s=2.5, took_s=1.25)
    [step] = hand.say(call, "left")
    [end] = hand.show(step, "out", terminated=True, index=1, took_s=0.005)
    hand.end(end)
    return written(hand.entries)


def written(entries: Sequence[Entry]) -> dict[str, object]:
    """Records as they lie in the log, and the trajectories that today's fold makes of them."""
    _, effects = fold(entries, world_of(PROGRAMS))
    records = []
    for entry in entries:
        value = CODEC.encode("events", entry.event)
        schema_id = PREFIX.unpack_from(value)[1]
        text = base64.b64encode(value).decode()
        records.append([entry.offset, entry.at_ms, entry.event.rollout_id, text])
    trajectory_schema = schema_text(Trajectory)
    return {
        "schemas": {schema_id: schema_text(Event)},
        "trajectory_schema": trajectory_schema,
        "records": records,
        "trajectories": digests((effect for _, effect in effects), trajectory_schema),
    }


def main() -> int:
    there = folder()
    if there.exists():
        print(f"{there.name} is recorded already and stays as it is", file=sys.stderr)
        return 1
    there.mkdir()
    journals = {name: diced(*drawn) for name, drawn in DICED.items()}
    journals |= {"fork": forked(), "timed": timed()}
    for name, body in journals.items():
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
