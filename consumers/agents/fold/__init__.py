"""The fold: computes the state of each rollout from its journal and nothing else.

Its input is the journal's events, in log order. Its output is messages: commands (ModelCall,
EnvironmentStep), decisions to be written into the journal (Event) and the Trajectory of a rollout
that has ended. State changes when an event is read, never when it is written: a decision takes
effect when it is read back.

An answer counts if its attempt is the current one and its command is outstanding and unanswered:
the first event per (position, try), where try is the number of failures counted at that position.
Any other answer is ignored and counted in `Journal.ignored`. An answer to an effect that the
program never made, or made with another body, is a DeterminismError and ends that attempt.

Two guards keep an error inside its rollout: `FoldContext.guard` around all code that touches a
program, `Journal.apply_event` around the rest. After an error in either the rollout stops: its end,
failed, is a decision like any other, and every reader comes to the same one or waits for it in the
log.

- `journal`: one partition, its open rollouts and its chain of starts
- `rollout`: one open rollout, its attempts, decisions and end
- `attempt`: a running program, and the answers that it waits for
- `attempt_effects`: the effects of an attempt: opened, answered, and the state that they leave
- `effect_digests`: digests of effects
- `outstanding`: one effect whose answer has not been counted, and its deadlines
- `conversation`: one token sequence that is only ever extended
- `commands`: the commands of effects; `trajectory`: the record of an ended rollout
- `checks`: validation of what a program yields; `context`: the fold's dependencies
"""
