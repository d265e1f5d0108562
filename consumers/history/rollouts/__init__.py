"""Single rollouts: their records, the course of them, forks, failures and phases."""
