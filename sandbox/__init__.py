"""Environments that agents act on, and scorers of their trajectories.

Public: `environment` (the interface, `make_environment`, `check_environment`), `environments` (the
included ones), `sessions` (the open environments of one worker), `scorers` (`score`,
`check_scorer`), `user_code` (lookup of both by name).
"""
