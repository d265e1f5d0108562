"""A rollout's story, turn by turn as text, and as plain values."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from rollcall.compose.console import safe
from rollcall.compose.pages.agent_lines import Said, describe_requests, message_text
from rollcall.compose.pages.phase_lines import NAMES
from rollcall.consumers.history.reading.times import iso
from rollcall.consumers.history.rollouts.rollout_story import Entry, Story
from rollcall.consumers.history.rollouts.timing import Timers, phases_of, timers_of
from rollcall.schemas.as_json import plain
from rollcall.schemas.messages import (
    AttemptStarted,
    CallFailed,
    DeadlinePassed,
    EnvironmentStepped,
    Event,
    ModelAnswered,
    Reward,
    RolloutCancelled,
    RolloutFinished,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
    RolloutTimers,
    ScoredTrajectory,
    TokenScores,
)
from rollcall.schemas.packed import ids_of, logprobs_of
from rollcall.schemas.untrusted_text import printable

PROMPT_CHARS = 120
Summary = tuple[str, str, str]
"""The kind of an event, its content, and remarks."""


def print_story(
    story: Story, scored: Sequence[ScoredTrajectory], terminal: Console, *, tokens: bool = False
) -> None:
    """Print the story: request, events in order, end, times, rewards; `tokens` adds tokens."""
    head = [safe(story.rollout_id, style="bold"), *map(safe, request_lines(story.request))]
    rewards = reward_lines(scored) or (["not scored yet"] if story.end else [])
    ends = [end_line(story), _time_line(timers_of(story)), *phase_lines(phases_of(story)), *rewards]
    terminal.print(Group(*head, _events(story, tokens=tokens), *map(safe, ends), ""))


def plain_story(story: Story, scored: Iterable[ScoredTrajectory]) -> dict[str, Any]:
    """Return the whole story as JSON values."""
    return {
        "rollout_id": story.rollout_id,
        "partition": story.partition,
        "request": plain(story.request) if story.request else None,
        "events": [
            {
                "offset": entry.offset,
                "time": iso(entry.at_ms),
                "ignored": entry.ignored,
                "event": plain(entry.event) if entry.event else None,
            }
            for entry in story.entries
        ],
        "ended": story.end is not None,
        "seconds": asdict(timers_of(story)),
        "timers": plain(phases) if (phases := phases_of(story)) else None,
        "scored": [
            {
                "scoring_id": each.scoring_id,
                "total": each.total,
                "reason": each.reason,
                "rewards": [plain(reward) for reward in each.rewards],
                "token_scores": [plain(tokens) for tokens in each.token_scores],
            }
            for each in scored
        ],
    }


def request_lines(request: RolloutRequest | None) -> list[str]:
    """Return the request in two lines."""
    if request is None:
        return ["its request cannot be read, or its start is past retention"]
    task, limits = request.task, request.limits
    words = [f"program {request.agent}", f"policy {request.policy_id}"]
    words += [f"environment {task.environment} with seed {task.seed}"] if task.environment else []
    words += [f"{request.purpose}"]
    words += [f"run {request.run_id}"] if request.run_id else []
    words += [f"group {request.group_id} of {request.group_size}"] if request.group_id else []
    words += [f"user {request.user}"] if request.user else []
    if request.parent_rollout_id:
        words.append(
            f"fork of {request.parent_rollout_id} from its position {request.parent_position}"
        )
    bounds = (
        f"turns {limits.max_turns}, tokens a turn {request.sampling.max_tokens}, "
        f"tries {limits.max_tries}, attempts {limits.max_attempts}, "
        f"temperature {request.sampling.temperature:g}"
    )
    asked = task.prompt or task.system
    cut = f" (of {len(asked):,} characters; --json prints all)" if short(asked) != asked else ""
    return [", ".join(words), f"{bounds}, {short(asked)!r}{cut}" if asked else bounds]


def _events(story: Story, *, tokens: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    for style in ("dim", "cyan", "bold"):
        table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    said = _said(story)
    for entry, title in zip(story.entries, titles(story), strict=True):
        if title:
            table.add_row("", "", safe(title, style="bold magenta"), "")
        table.add_row(*_row(entry, story, said))
        if tokens and entry.event is not None and isinstance(entry.event.body, ModelAnswered):
            for line in token_lines(entry.event.body):
                table.add_row("", "", "", safe(line, style="dim"))
    return table


def _said(story: Story) -> set[Said]:
    """Return all answers of the model."""
    bodies = (entry.event.body for entry in story.entries if entry.event)
    return {(body.text, body.tool_calls) for body in bodies if isinstance(body, ModelAnswered)}


def token_lines(answer: ModelAnswered) -> Iterator[str]:
    """Yield the added prompt ids, then each sampled token with log-probability and version."""
    if answer.added_ids:
        yield f"read    {' '.join(map(str, ids_of(answer.added_ids)))}"
    sampled = zip(
        ids_of(answer.token_ids), logprobs_of(answer.logprobs), ids_of(answer.versions), strict=True
    )
    yield f"sampled {'  '.join(f'{token} {logprob:.3f} v{v}' for token, logprob, v in sampled)}"


def titles(story: Story) -> Iterator[str]:
    """Yield the title of each entry; a turn begins with the first event of a model call."""
    calls = {_place(e.event) for e in story.counted() if e.event and _is(e, ModelAnswered)}
    begun: set[tuple[int, int]] = set()
    turn = 0
    for entry in story.entries:
        title = ""
        if not entry.ignored and entry.event is not None:
            place = _place(entry.event)
            if isinstance(entry.event.body, AttemptStarted):
                turn, title = 0, f"attempt {entry.event.attempt}"
            elif place in calls - begun:
                begun.add(place)
                turn += 1
                title = f"turn {turn}"
        yield title


def _row(entry: Entry, story: Story, said: Collection[Said]) -> tuple[Text, Text, Text, Text]:
    since = safe(f"{(entry.at_ms - story.started_ms) / 1000:+.3f} s")
    if entry.event is None:
        return (
            since,
            safe(""),
            safe("unreadable", style="red"),
            safe(printable(entry.ignored)),
        )
    kind, words, remarks = _summary(entry.event, story, said)
    if entry.ignored:
        remarks = f"{remarks}, {entry.ignored}" if remarks else entry.ignored
    text = safe(printable(words), style="dim" if entry.ignored else "")
    text.append(f"{'  ' if words else ''}({printable(remarks)})" if remarks else "", style="dim")
    style = "dim" if entry.ignored else "red" if isinstance(entry.event.body, CallFailed) else ""
    label = f"ignored: {kind}" if entry.ignored else kind
    return since, safe(_placed(entry.event)), safe(label, style=style), text


def _placed(event: Event) -> str:
    """Return attempt/position/try, or the attempt alone."""
    if event.position < 0:
        return f"{event.attempt}"
    return f"{event.attempt}/{event.position}/{event.tries}"


def _summary(event: Event, story: Story, said: Collection[Said] = ()) -> Summary:
    body = event.body
    by = f"by {event.written_by}"
    if isinstance(body, RolloutStarted):
        return "started", "", f"request {story.partition}:{body.request_offset}, {by}"
    if isinstance(body, RolloutRefused):
        return "refused", f"{body.code}: {body.reason}", by
    if isinstance(body, AttemptStarted):
        return "began anew", body.reason, by
    if isinstance(body, ModelAnswered):
        return "model", message_text(body.text, body.tool_calls), answer_remarks(body)
    if isinstance(body, EnvironmentStepped):
        asked = describe_requests(body, said)
        if asked is not None:
            return "agent", asked, ""
        return "environment", body.text, _step_remarks(body)
    if isinstance(body, CallFailed):
        fate = "may be tried again" if body.retriable else "not to be tried again"
        return "failed", f"{body.code}: {body.message}", f"{fate}, {by}"
    return (*_ended(body), by)


def _ended(body: RolloutCancelled | DeadlinePassed | RolloutFinished) -> tuple[str, str]:
    if isinstance(body, RolloutCancelled):
        return "cancelled", body.reason
    if isinstance(body, DeadlinePassed):
        return "timed out", f"not finished within {body.timeout_s:g} s"
    return body.status, ": ".join(filter(None, (body.code, body.reason))) or body.result


def answer_remarks(answer: ModelAnswered) -> str:
    """Return the sampled tokens, mean log-probability, versions, and finish reason."""
    versions = sorted(set(ids_of(answer.versions).tolist()))
    count = len(answer.token_ids) // 4
    words = [counted(count, "token")]
    if count:
        words.append(f"mean log-prob {float(logprobs_of(answer.logprobs).mean()):.3f}")
        span = f" {versions[0]}" if len(versions) == 1 else f"s {versions[0]} to {versions[-1]}"
        words.append(f"version{span}")
    return ", ".join([*words, answer.finish_reason])


def counted(count: int, what: str) -> str:
    """Return a count with its noun."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _step_remarks(step: EnvironmentStepped) -> str:
    ends = [name for name in ("terminated", "truncated") if getattr(step, name)]
    session = [] if step.session == "main" else [f"session {step.session}"]
    return ", ".join([f"reward {step.reward:+g}", *ends, *session])


def end_line(story: Story) -> str:
    """Return the end of the rollout, or that it is open, with its counts."""
    answers = [e.event.body for e in story.last_attempt() if _is(e, ModelAnswered) and e.event]
    tokens = sum(len(a.token_ids) // 4 for a in answers if isinstance(a, ModelAnswered))
    ignored = sum(bool(entry.ignored) for entry in story.entries)
    counts = (
        f"{len(answers)} turns, {tokens} tokens, {story.failures} failures in attempt "
        f"{story.attempt}, {ignored} ignored events"
    )
    end = story.end
    if end is None or end.event is None:
        return f"still open: {counts}"
    kind = _summary(end.event, story)[0]
    return f"{kind} after {(end.at_ms - story.started_ms) / 1000:.3f} s: {counts}"


def _time_line(timers: Timers) -> str:
    return (
        f"time    waiting for model {timers.waiting_for_model:.3f} s (tries without an answer), "
        f"model {timers.model:.3f} s (queue and sampling), "
        f"environment {timers.environment:.3f} s, overhead {timers.overhead:.3f} s"
    )


def phase_lines(timers: RolloutTimers | None) -> list[str]:
    """Return the known phases in one line; none if its journal tells none."""
    known = {} if timers is None else asdict(timers)
    words = [f"{NAMES[name]} {value:.3f} s" for name, value in known.items() if value is not None]
    return [f"phases  {', '.join(words)}"] if words else []


def reward_lines(scored: Sequence[ScoredTrajectory]) -> list[str]:
    """Return a line per scorer and one for the total, by scoring id."""
    lines = []
    for each in scored:
        lines += [f"reward  {_reward(reward)}" for reward in each.rewards]
        lines += [f"tokens  {_token_scores(tokens)}" for tokens in each.token_scores]
        total = "none" if each.total is None else f"{each.total:+g}"
        why = f": {printable(each.reason)}" if each.reason else ""
        lines.append(f"total   {total} by scoring {each.scoring_id!r}{why}")
    return lines


def _reward(reward: Reward) -> str:
    said = printable(reward.reason)
    if reward.value is None:
        return f"none: {said} by {reward.scorer}, weight {reward.weight:g}"
    why = f": {said}" if said else ""
    return f"{reward.value:+g} by {reward.scorer}, weight {reward.weight:g}{why}"


def _token_scores(tokens: TokenScores) -> str:
    scores = logprobs_of(tokens.scores)
    known = f", {scores.min():+.3f} to {scores.max():+.3f}" if scores.size else ""
    return f"{scores.size} scores of sequence {tokens.sequence} by {tokens.scorer}{known}"


def _place(event: Event) -> tuple[int, int]:
    return event.attempt, event.position


def _is(entry: Entry, kind: type) -> bool:
    return entry.event is not None and isinstance(entry.event.body, kind)


def short(text: str) -> str:
    """Shorten a text to fit into a line."""
    return text if len(text) <= PROMPT_CHARS else f"{text[:PROMPT_CHARS]}…"
