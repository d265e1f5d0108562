"""`rollcall chaos`: a workload, faults from a seeded schedule, and an audit of the log."""
