"""Environments and scorers: what an agent acts upon, and what judges it.

Public: `environment` (the seam, `make_environment`, `check_environment`), `environments` (those
that are shipped), `tasks` (their ready-made configurations), `sessions` (the open environments of
one worker), `scorers` (`score`, `check_scorer`), `named` (how both are found by name).
"""
