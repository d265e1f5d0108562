"""Any readable message on any topic at most ends a worker with a named error."""

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas import messages
from rollcall.schemas.errors import Unavailable, Unfit, WireError
from rollcall.schemas.messages import Event
from tests.support.avro_messages import any_message
from tests.support.hand_answers import ask, calls
from tests.support.lake import crossing, walk
from tests.support.rig import Rig
from tests.support.tiers import examples
from tests.support.whole_log import audited

ON_TOPICS = {
    "requests": messages.RolloutRequest, "steps": messages.EnvironmentStep,
    "events": messages.Event, "trajectories": messages.Trajectory,
    "scored": messages.ScoredTrajectory, "control": messages.Control, "quotas": messages.Quota,
    "versions": messages.PolicyVersion, "train_steps": messages.TrainStep,
    "calls": messages.ModelCall,
}  # fmt: skip
BODIES = [
    messages.ModelAnswered, messages.EnvironmentStepped, messages.CallFailed,
    messages.AttemptStarted, messages.RolloutFinished, messages.RolloutCancelled,
    messages.DeadlinePassed,
]  # fmt: skip
words = st.one_of([st.tuples(st.just(n), any_message(k)) for n, k in ON_TOPICS.items()])
bodies = st.one_of([any_message(kind) for kind in BODIES])


@given(st.lists(words, max_size=3), st.lists(bodies, max_size=3), st.integers(0, 3))
@settings(
    max_examples=examples(15), suppress_health_check=list(HealthCheck), database=None, deadline=None
)
def test_any_message_on_any_topic_at_most_raises_a_named_error(
    said: list[tuple[str, Any]], answers: list[Any], seed: int
) -> None:
    # Given workers with calls out
    rig, rng = Rig(), random.Random(seed)
    crew = [
        rig.agents(),
        rig.models(ScriptedEngine("p", walk)),
        rig.environments(),
        rig.rewards(),
    ]
    ask(rig, "r")
    rig.ask(crossing(1))
    rig.settle(crew[0])

    # When anything is answered to these, and anything is written anywhere
    for body in answers:
        call = rng.choice(calls(rig))
        attempt = rng.choice([1, 1, 2])
        known = call.position, call.tries, call.command_id, call.body_digest
        rig.enter(Event(call.rollout_id, attempt, *known, "x", body))
    for name, message in said:
        topic = rig.topics.calls("p") if name == "calls" else getattr(rig.topics, name)
        try:
            rig.write(topic, "k", message, 0)
        except WireError:  # lengths that do not match: no writer accepts it
            continue

    # Then they continue, or end with a named error; so do their successors, and the audit ends
    for _ in range(2):
        for loop in crew:
            named(lambda loop=loop: rig.settle(loop, turns=30))
        rig.clock.pass_by(700)
    named(lambda: audited(rig, drained=False))
    rig.close()
    named(lambda: rig.settle(rig.agents("a2"), turns=30))


def named(act: Any) -> None:
    """Run it; only an error that names the remedy may be raised."""
    try:
        act()
    except (Unfit, Unavailable):
        return
