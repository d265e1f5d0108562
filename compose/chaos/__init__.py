"""`rollcall chaos`: a workload, faults from a seeded schedule, and what the log says afterwards."""
