"""The worker loop and what it owes to every group: roles, dead letters, suspects, commits."""
