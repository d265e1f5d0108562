"""Trajectories as a scorer meets them: what was said, and what the environment gave."""

from rollcall.schemas.messages import Message, RolloutRequest, Sequence, StepTaken, Task, Trajectory


def step(reward: float) -> StepTaken:
    return StepTaken(0, "main", "R", "s1", reward, terminated=False, truncated=False)


def sequence(*messages: Message) -> Sequence:
    return Sequence(b"", b"", b"", b"", b"", messages)


def trajectory(
    *rewards: float, task: Task | None = None, said: str = "", status: str = "finished"
) -> Trajectory:
    """One question and one answer, and a step for each reward."""
    return Trajectory(
        rollout_id="r1",
        attempt=1,
        status=status,
        request=RolloutRequest("r1", task or Task()),
        policies=("policy",),
        sequences=(sequence(Message("user", "?"), Message("assistant", said)),),
        steps=tuple(map(step, rewards)),
        model_calls=1,
        sampled_tokens=1,
        failures=0,
        journal_partition=0,
        first_offset=0,
        last_offset=9,
        started_ms=0,
        ended_ms=1,
    )
