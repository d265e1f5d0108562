"""The request of a fork: a rollout whose first turns are those of a recorded one.

The parent's journal is counted and folded here with its program, as its owner did; the part that
the fork needs goes into the request (`rollcall.consumers.agents.fork`). Forks that could not be
replayed are refused here: the program has changed, or an environment does not replay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.journal import Journal
from rollcall.consumers.agents.fold.rollout import Rollout
from rollcall.consumers.agents.fork import (
    Past,
    Recorded,
    RecordedAnswer,
    RecordedFailure,
    RecordedObservation,
)
from rollcall.consumers.agents.programs import program_digest, program_of
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.rollouts.rollout_story import Story, latest, stories_of
from rollcall.producers.submit import grouped, new_rollout_id
from rollcall.sandbox.environment import is_replayable
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.ids import call_seed
from rollcall.schemas.messages import (
    NO_POSITION,
    CallFailed,
    EnvironmentStepped,
    Event,
    ModelAnswered,
    RolloutFinished,
    RolloutRequest,
    RolloutStarted,
)


@dataclass(frozen=True, slots=True)
class ForkParent:
    """A rollout that can be forked, in its last attempt."""

    story: Story
    request: RolloutRequest
    rollout: Rollout

    @property
    def turns(self) -> list[int]:
        """The positions at which its model answered."""
        return sorted(
            event.position for event in self.settled() if isinstance(event.body, ModelAnswered)
        )

    def settled(self) -> Iterator[Event]:
        """Yield the events that closed the effects of the last attempt, by position."""
        for event in sorted(self.story.outcomes(), key=attrgetter("position")):
            if event.position >= 0 and event.position not in self.rollout.attempt.outstanding:
                yield event


def parent_of(history: History, rollout_id: str, world: FoldContext) -> ForkParent:
    """Fold a rollout from its journal again; raises Refused if that is not possible."""
    return parent_in(latest(stories_of(history, rollout_id)), world)


def parent_in(story: Story, world: FoldContext) -> ForkParent:
    """Like `parent_of`, from a journal that has been read."""
    start = story.entries[0].event
    if start is None or not isinstance(start.body, RolloutStarted):
        why = "was refused" if story.request else "cannot be read, or is past retention"
        msg = f"rollout {story.rollout_id!r} cannot be forked: its start {why}"
        raise Refused(msg)
    request = start.body.request
    today, then = program_digest(program_of(request.agent)), start.body.program_digest
    if today and then and today != then:
        raise _changed(request)
    return ForkParent(story, request, _folded(story, request, world))


def _folded(story: Story, request: RolloutRequest, world: FoldContext) -> Rollout:
    """Return the folded rollout; raises Refused if the journal does not fit the program."""
    journal = Journal(story.partition, world, "fork")
    ended = None
    for entry in story.entries:
        if entry.event is not None:
            taken = journal.apply_event(entry.event, entry.offset, entry.at_ms, silent=True)
            ended = taken.rollout if taken.ended else ended
    rollout = journal.open.get(request.rollout_id, ended)
    if rollout is None or rollout.broken or rollout.attempt.number != story.attempt:
        raise _changed(request)
    return rollout


def _changed(request: RolloutRequest) -> Refused:
    return Refused(
        f"rollout {request.rollout_id!r} cannot be forked: its program {request.agent!r} is no "
        "longer the one that it ran; bring that one back under its name"
    )


def fork_request(
    parent: ForkParent, turn: int, *, policy_id: str = "", seed: str = ""
) -> RolloutRequest:
    """Return the request of one fork; raises Refused for an unsuitable turn or environment."""
    position = _position_of(parent, turn)
    past = _past(parent, position, turn)
    _require_replayable(parent, position)
    request = parent.request
    policy = policy_id or request.policy_id
    return replace(
        request,
        rollout_id=new_rollout_id(),
        agent="fork",
        agent_config=past.config(),
        policy_id=policy,
        run_id="",
        purpose="replay",
        group_id="",
        group_size=1,
        sampling_seed=seed,
        min_policy_version=request.versions_for(policy)[0],
        parent_rollout_id=request.rollout_id,
        parent_position=position,
        policy_version=-1,
        policy_versions={},
        scorings=(),
    )


def continuation(parent: ForkParent, *, masked: bool = False) -> RolloutRequest:
    """Return the parent's request, changed to continue at its last answer; the id is unchanged.

    Sampled tokens keep their log-probabilities and versions; if `masked`, or if an answer is
    untrainable, they become prompt tokens. Without an answer so far it is the parent's request
    itself. Raises Refused.
    """
    request, turn = parent.request, len(parent.turns)
    if not turn:
        return request
    position = _position_of(parent, turn)
    masked = masked or any(_is_untrainable(event) for event in parent.settled())
    past = _past(parent, position, turn, sampled=not masked)
    _require_replayable(parent, position)
    return replace(
        request,
        agent="fork",
        agent_config=replace(past, continues=True).config(),
        parent_rollout_id=request.rollout_id,
        parent_position=position,
    )


def _is_untrainable(event: Event) -> bool:
    return isinstance(event.body, ModelAnswered) and bool(event.body.untrainable)


def _past(parent: ForkParent, position: int, turn: int, *, sampled: bool = False) -> Past:
    """Return the recorded part of the parent below a position."""
    request = parent.request
    settled = [event for event in parent.settled() if event.position < position]
    return Past(
        request.agent,
        request.agent_config,
        call_seed(request.seed_key, parent.rollout.attempt.number, NO_POSITION),
        turn,
        tuple(_recorded(event, sampled=sampled) for event in settled),
        _order(parent, settled),
    )


def fork_requests(request: RolloutRequest, count: int) -> Iterator[RolloutRequest]:
    """Yield the members of one group of forks; a given seed is extended by the member's number."""
    for number, member in enumerate(grouped(request, count)):
        seed = member.sampling_seed
        yield replace(member, sampling_seed=f"{seed}-{number}") if seed and count > 1 else member


def _position_of(parent: ForkParent, turn: int) -> int:
    """Return the parent's first live position: that of the turn, or the one after the last."""
    turns, rollout_id = parent.turns, parent.request.rollout_id
    if 0 <= turn < len(turns):
        return turns[turn]
    ended = parent.story.end
    finished = (
        ended is not None
        and ended.event is not None
        and isinstance(ended.event.body, RolloutFinished)
        and ended.event.body.status == "finished"
    )
    if turn == len(turns) and not finished:
        return max((event.position for event in parent.settled()), default=-1) + 1
    most = len(turns) - finished
    there = f"0 to {most}" if most >= 0 else "none: it finished without calling its model"
    msg = f"--at {turn}: rollout {rollout_id!r} can be forked at turn {there}"
    raise Refused(msg)


def _order(parent: ForkParent, settled: Sequence[Event]) -> tuple[int, ...]:
    """Return the positions in log order; empty if that is ascending."""
    positions = [event.position for event in settled]
    known = set(positions)
    came = tuple(e.position for e in parent.story.outcomes() if e.position in known)
    return () if list(came) == positions else came


def _recorded(event: Event, *, sampled: bool = False) -> Recorded:
    """Return the record of an answer; if `sampled`, with log-probabilities and versions."""
    body = event.body
    if isinstance(body, ModelAnswered):
        return RecordedAnswer(
            event.position,
            body.sequence,
            body.text,
            body.tool_calls,
            body.finish_reason,
            body.added_ids,
            body.token_ids,
            body.stopped_by,
            body.logprobs if sampled else b"",
            body.versions if sampled else b"",
        )
    if isinstance(body, EnvironmentStepped):
        return RecordedObservation(
            event.position, body.text, body.reward, body.terminated, body.truncated
        )
    assert isinstance(body, CallFailed)
    return RecordedFailure(event.position, body.code, body.message)


def _require_replayable(parent: ForkParent, position: int) -> None:
    """Raise Refused if an action would be applied again in an
    environment that is not replayable."""
    acted = {
        step.session
        for step in parent.rollout.attempt.steps_taken()
        if step.action is not None and step.position < position
    }
    for session in sorted(acted):
        opened = parent.rollout.attempt.sessions[session]
        try:
            replayable = is_replayable(opened.environment, opened.environment_config)
        except WorkFailed as error:
            raise Refused(str(error)) from error
        if not replayable:
            msg = (
                f"rollout {parent.request.rollout_id!r} cannot be forked there: its environment "
                f"{opened.environment!r} is not replayable, so its first steps cannot be rebuilt; "
                "fork it at turn 0"
            )
            raise Refused(msg)
