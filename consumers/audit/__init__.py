"""The audit of a log: checks the invariants, by the log alone.

The journal is read first (`history`), then train.steps, then all other topics, which are compared
with the effects that these two imply. Rules for a log that is still being written:

* An effect is due only if its cause is below the committed offset of its group: a commit waits
  for the acks. Above that offset the effect is pending, unless the log is given as drained.
* A rollout without a terminal event is open, and a breach only if the log is drained.
* A cause is searched in the whole window. If the window does not begin with the log, effects of
  rollouts that began before it are counted and not judged.

I1  A request below the last one started, or committed by the agents, is in the chain of starts.
    Every start has its request. Every rollout begins once, and has one terminal event, at the
    latest when its owners have been at work for a while after its deadline.
I2  The fold and the law of counting count the same events. If a program asks something else than
    its journal answers, a new attempt or the end of the rollout follows.
I3  The command ids on the work topics are those that the fold implies, and a command's content is
    the implied one, except for deadlines.
I4  No trajectory holds more answers than were counted, or one position twice.
I5  Every trajectory on `trajectories` and inside `trajectories.scored` equals the result of the
    fold byte for byte, also in repeated records.
I6  Work below a committed offset is done: requests are started, commands answered by a worker
    (or aborted, buried or skipped), trajectories scored, unreadable bytes buried. A reader that
    resumes from the agents' commit knows every open rollout and the last request started.
I7  Among the steps from which the last version of a run descends, none is missing and no (rollout,
    attempt) occurs twice. Every reference is to a scored record of that rollout, which the run
    requested for training. No version of a policy has two different steps, or two runs.
I8  Each terminal event has a trajectory, and each trajectory a scored record of every expected
    scoring id: those named, else those whose group has committed and was not retired. None of them
    is without its cause. Later copies are counted.
I9  Answers of finished work to a command that was answered before are counted, and so are repeated
    trajectories, scored records and steps; they are a breach if there are more than allowed.
"""
