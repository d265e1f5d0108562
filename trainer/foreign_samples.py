"""Whether a record of another run can be trained on here: the same answer whoever asks."""

from collections.abc import Callable
from dataclasses import replace

from schemas.messages import ScoredTrajectory
from trainer.foreign import RECORDED, SHARED
from trainer.samples import UNTOLD, Curation, Member, judge

Retell = Callable[[ScoredTrajectory], ScoredTrajectory | None]
"""The same rollout as tokens of our policy alone; None where its text cannot be read as such."""


def judge_any(
    scored: ScoredTrajectory,
    partition: int,
    offset: int,
    curation: Curation,
    retell: Retell | None = None,
) -> Member:
    """What a record of a batch is, whosever it is; never raises."""
    request = scored.trajectory.request
    if request is None or request.run_id == curation.run_id:
        return judge(scored, partition, offset, curation)
    recorded = curation.recorded
    if recorded is not None and request.run_id == recorded.run:
        return judge_recorded(scored, partition, offset, curation)
    return judge_shared(scored, partition, offset, curation, retell)


def judge_recorded(
    scored: ScoredTrajectory, partition: int, offset: int, curation: Curation
) -> Member:
    """A record of the run that `curation.recorded` names, with its tokens as they were sampled."""
    recorded = curation.recorded
    if recorded is None:
        return judge(scored, partition, offset, curation)
    theirs = replace(
        curation, run_id=recorded.run, policy_id=recorded.policy_id, abandoned=(), joins=False
    )
    return _lent(judge(scored, partition, offset, theirs), RECORDED)


def judge_shared(
    scored: ScoredTrajectory,
    partition: int,
    offset: int,
    curation: Curation,
    retell: Retell | None,
) -> Member:
    """A record of any other run, with its text as tokens of ours."""
    request = scored.trajectory.request
    told = retell(scored) if retell is not None and curation.share is not None else None
    if told is None or request is None:
        length = scored.trajectory.sampled_tokens
        return Member(scored, (partition, offset), length, None, UNTOLD)
    ours = replace(curation, run_id=request.run_id, abandoned=(), joins=False)
    return _lent(judge(told, partition, offset, ours), SHARED)


def _lent(member: Member, how: str) -> Member:
    """Versions of another numbering say nothing here: it has none."""
    if member.sample is None:
        return member
    return replace(member, version=None, sample=replace(member.sample, lent=how, min_version=-1))
