"""The check if a record of another run can be trained on; a function of the record alone."""

from collections.abc import Callable
from dataclasses import replace

from rollcall.schemas.messages import ScoredTrajectory
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.curation.judge import NOT_ENCODABLE, Member, judge
from rollcall.trainer.rules.samples import RECORDED, SHARED

Reencode = Callable[[ScoredTrajectory], ScoredTrajectory | None]
"""A function that tokenises a rollout for our policy; None if that is not possible."""


def judge_any(
    scored: ScoredTrajectory,
    partition: int,
    offset: int,
    curation: Curation,
    reencode: Reencode | None = None,
) -> Member:
    """Judge a record of a batch, of our run or of another; never raises."""
    request = scored.trajectory.request
    if request is None or request.run_id == curation.run_id:
        return judge(scored, partition, offset, curation)
    recorded = curation.recorded
    if recorded is not None and request.run_id == recorded.run:
        return judge_recorded(scored, partition, offset, curation)
    return judge_shared(scored, partition, offset, curation, reencode)


def judge_recorded(
    scored: ScoredTrajectory, partition: int, offset: int, curation: Curation
) -> Member:
    """Judge a record of the run in `curation.recorded`, with its tokens as sampled."""
    recorded = curation.recorded
    if recorded is None:
        return judge(scored, partition, offset, curation)
    theirs = replace(
        curation, run_id=recorded.run, policy_id=recorded.policy_id, abandoned=(), joins=False
    )
    return _borrowed(judge(scored, partition, offset, theirs), RECORDED)


def judge_shared(
    scored: ScoredTrajectory,
    partition: int,
    offset: int,
    curation: Curation,
    reencode: Reencode | None,
) -> Member:
    """Judge a record of any other run, with its text tokenised for our policy."""
    request = scored.trajectory.request
    reencoded = reencode(scored) if reencode is not None and curation.share is not None else None
    if reencoded is None or request is None:
        length = scored.trajectory.sampled_tokens
        return Member(scored, (partition, offset), length, None, NOT_ENCODABLE)
    ours = replace(curation, run_id=request.run_id, abandoned=(), joins=False)
    return _borrowed(judge(reencoded, partition, offset, ours), SHARED)


def _borrowed(member: Member, how: str) -> Member:
    """Mark a member's sample as borrowed and clear its versions, which belong to another run."""
    if member.sample is None:
        return member
    sample = replace(member.sample, borrowed=how, min_version=-1)
    return replace(member, version=None, sample=sample)
