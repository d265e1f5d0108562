"""The command that is sent for an effect: deterministic, so that sending it
again gives the same bytes."""

from dataclasses import replace

from rollcall.consumers.agents.effects import CallModel, Reset, Step
from rollcall.consumers.agents.fold.attempt import Attempt
from rollcall.consumers.agents.fold.effect_digests import environment_of
from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.schemas.ids import call_seed, command_id
from rollcall.schemas.message_code import maker
from rollcall.schemas.messages import EnvironmentStep, ModelCall

Command = ModelCall | EnvironmentStep

# Made for every turn.
make_call = maker(ModelCall)
make_step = maker(EnvironmentStep)


def command(attempt: Attempt, waits: OutstandingEffect) -> Command:
    """Return the command of one outstanding effect in its present state."""
    effect = waits.effect
    if isinstance(effect, CallModel):
        return _call(attempt, waits, effect)
    if isinstance(effect, Reset):
        return _reset(attempt, waits, effect)
    assert isinstance(effect, Step)
    return _step(attempt, waits, effect)


def command_identity(
    attempt: Attempt, waits: OutstandingEffect
) -> tuple[str, int, int, int, bytes, bytes]:
    """Return the fields that identify a command, and the event that answers it."""
    rollout_id, position = attempt.request.rollout_id, waits.position
    named = command_id(rollout_id, attempt.number, position, waits.tries)
    return rollout_id, attempt.number, position, waits.tries, named, waits.digest


def release_commands(attempt: Attempt) -> list[Command]:
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
            # An abort needs no content: the server finds its call by the ids.
            aborted = replace(sent, kind="abort", messages=(), prefix_ids=None, prefix_length=0)
            closing.append(aborted)
        elif sent.kind == "reset":
            closing.append(replace(sent, kind="close"))
    return closing


def _call(attempt: Attempt, waits: OutstandingEffect, effect: CallModel) -> ModelCall:
    request = attempt.request
    sequence, sampling = waits.sequence, waits.sampling
    assert sequence is not None
    assert sampling is not None
    # A server that can be expected to hold the prefix is sent its hash alone.
    named = sequence.held() and not waits.with_history
    least, pinned = request.versions_for(sequence.policy_id)
    return make_call(
        *command_identity(attempt, waits),
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
        tools=effect.tools or "",
        min_policy_version=least,
        policy_version=pinned,
    )


def _reset(attempt: Attempt, waits: OutstandingEffect, effect: Reset) -> EnvironmentStep:
    name, config, seed = environment_of(effect, attempt.request.task)
    return make_step(
        *command_identity(attempt, waits),
        attempt.partition,
        waits.not_after_ms(),
        "reset",
        name,
        effect.session,
        config,
        seed,
        timeout_s=waits.timeout_s,
    )


def _step(attempt: Attempt, waits: OutstandingEffect, effect: Step) -> EnvironmentStep:
    session = attempt.sessions[effect.session]
    return make_step(
        *command_identity(attempt, waits),
        attempt.partition,
        waits.not_after_ms(),
        "step",
        session.environment,
        effect.session,
        session.environment_config,
        session.seed,
        session.applied,
        effect.action,
        attempt.actions_of(effect.session) if waits.with_history else None,
        waits.timeout_s,
    )
