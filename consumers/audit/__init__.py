"""Whether the invariants hold, decided from the log alone.

The journal is read first (`history`), then train.steps, then everything else against what these
two imply. What an invariant means on a log that is still being written:

* An effect is owed only by a cause below the offset that its group has committed: the commit waits
  for the acks. Above it the effect is pending, unless the log is said to be drained.
* A rollout without a terminal event is open, and a breach only where the log is drained.
* A cause is looked for in the whole window. Where the window does not begin with the log, effects
  of rollouts that began before it are counted and not judged.

I1  A request below the last one started, or committed by the agents, is in the chain of starts;
    every start is of a request that is there; every rollout begun has one terminal event, at the
    latest when its owners have been at work for a while past its deadline; and it is begun once.
I2  Fold and law of counting count the same events. Where a program asks something else than its
    journal answers, a new attempt or the end of the rollout must follow.
I3  The command ids on the work topics are those that the fold implies, and what a command says is
    what it implies, deadlines aside.
I4  No trajectory holds more answers than were counted, or one position twice.
I5  Every trajectory on `trajectories` and inside `trajectories.scored` is byte for byte what the
    fold gives, also where it was written again.
I6  What a group says that it is done with is: requests are started, commands answered by a worker
    (or called off, buried or skipped), trajectories scored, unreadable bytes buried. Whoever goes
    on from the agents' commit knows every open rollout and the last request started.
I7  In the steps that the last version of a run descends from none is missing, and a (rollout,
    attempt) occurs once; every reference is to a scored record of that rollout, which the run asked
    for to train on; no version of a policy has two different steps, or two runs.
I8  Each terminal event has a trajectory, each trajectory a scored record of every scoring id that
    is expected: those named, else those whose group has committed and was not retired. Neither is
    without its cause. Later copies are counted.
I9  Answers of finished work to a command whose work had been answered before are counted, and so
    are trajectories, scored records and steps that are written again; a breach where there are more
    than allowed.
"""
