"""The worker loop and what all groups share: roles, dead letters, suspects, commits."""
