"""The rewards group: scores trajectories, and publishes them with their rewards."""
