"""The fold: a rollout's journal and nothing else decides its history.

Events go in, in log order; out come the messages they give rise to: commands (ModelCall,
EnvironmentStep), decisions to be written into the journal (Event) and the Trajectory of a rollout
that has ended. State changes when an event is read, never when it is written: a decision acts when
it is read back.

An answer counts if its attempt is the current one and its command is outstanding and unanswered:
the first event per (position, try), where try is the number of failures counted at that position.
Anything else is ignored and counted in `Journal.ignored`. An answer that the program never asked
for, or asked for with another body, is a DeterminismError: that attempt is over.

Two walls keep what goes wrong inside one rollout: `World.guard` around all that touches a
program, `Journal.take` around the rest. Behind either the rollout stands still: its end, failed, is
a decision like any other, and every reader comes to the same one or waits for it in the log.

- `journal`: one partition, its open rollouts and its chain of starts
- `rollout`: one open rollout, its attempts, decisions and end
- `attempt`: a program that runs, what it waits for and what it has learned
- `bodies`: what a wish says, as a digest; `openings`: how one is noted
- `outstanding`: one wish whose answer has not been counted, and its deadlines
- `conversation`: one token sequence that is only ever extended
- `commands`: what is sent for a wish; `trajectory`: what is written at an end
- `checks`: what a program may yield; `world`: what the fold is given from outside
"""
