"""The command that is sent for a wish: deterministic, so that sending it
again gives the same bytes."""

from dataclasses import replace

from rollcall.consumers.agents.fold.attempt import Attempt
from rollcall.consumers.agents.fold.bodies import environment_of
from rollcall.consumers.agents.fold.outstanding import Outstanding
from rollcall.consumers.agents.wishes import CallModel, Reset, Step
from rollcall.schemas.ids import call_seed, command_id
from rollcall.schemas.message_code import maker
from rollcall.schemas.messages import EnvironmentStep, ModelCall

Command = ModelCall | EnvironmentStep

# Made for every turn.
make_call = maker(ModelCall)
make_step = maker(EnvironmentStep)


def command(attempt: Attempt, waits: Outstanding) -> Command:
    """Return the command of one outstanding wish in its present state."""
    wish = waits.wish
    if isinstance(wish, CallModel):
        return _call(attempt, waits, wish)
    if isinstance(wish, Reset):
        return _reset(attempt, waits, wish)
    assert isinstance(wish, Step)
    return _step(attempt, waits, wish)


def place(attempt: Attempt, waits: Outstanding) -> tuple[str, int, int, int, bytes, bytes]:
    """Return the fields that identify a command, and the event that answers it."""
    rollout_id, position = attempt.request.rollout_id, waits.position
    named = command_id(rollout_id, attempt.number, position, waits.tries)
    return rollout_id, attempt.number, position, waits.tries, named, waits.digest


def courtesy(attempt: Attempt) -> list[Command]:
    """Return commands that release open sessions and calls; they save work
    and do not affect history."""
    closing: list[Command] = [
        replace(command(attempt, session.reset), kind="close")
        for session in attempt.sessions.values()
        if not session.done
    ]
    for waits in attempt.outstanding.values():
        sent = command(attempt, waits)
        if isinstance(sent, ModelCall):
            aborted = replace(sent, kind="abort", messages=(), prefix_ids=None, prefix_length=0)
            closing.append(aborted)
        elif sent.kind == "reset":
            closing.append(replace(sent, kind="close"))
    return closing


def _call(attempt: Attempt, waits: Outstanding, wish: CallModel) -> ModelCall:
    request = attempt.request
    sequence, sampling = waits.sequence, waits.sampling
    assert sequence is not None
    assert sampling is not None
    named = sequence.held() and not waits.with_history
    least, pinned = request.versions_for(sequence.policy_id)
    return make_call(
        *place(attempt, waits),
        attempt.partition,
        waits.not_after_ms(),
        "sample",
        sequence.policy_id,
        sequence.index,
        waits.new,
        sampling,
        call_seed(request.seed_key, attempt.number, waits.position),
        None if named else sequence.packed(),
        sequence.length,
        sequence.hash.digest() if named else b"",
        tools=wish.tools or "",
        min_policy_version=least,
        policy_version=pinned,
    )


def _reset(attempt: Attempt, waits: Outstanding, wish: Reset) -> EnvironmentStep:
    name, config, seed = environment_of(wish, attempt.request.task)
    return make_step(
        *place(attempt, waits),
        attempt.partition,
        waits.not_after_ms(),
        "reset",
        name,
        wish.session,
        config,
        seed,
        timeout_s=waits.timeout_s,
    )


def _step(attempt: Attempt, waits: Outstanding, wish: Step) -> EnvironmentStep:
    session = attempt.sessions[wish.session]
    return make_step(
        *place(attempt, waits),
        attempt.partition,
        waits.not_after_ms(),
        "step",
        session.environment,
        wish.session,
        session.environment_config,
        session.seed,
        session.applied,
        wish.action,
        attempt.actions_of(wish.session) if waits.with_history else None,
        waits.timeout_s,
    )
