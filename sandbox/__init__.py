"""Environments and scorers: what an agent acts upon, and what judges it.

Public: `environment` (the seam, `make_environment`, `check_environment`), `environments` (those
that are shipped), `sessions` (the open environments of one worker), `scorers` (`score`,
`check_scorer`), `foreign` (how both are found by name).
"""
