"""The training group: read scored trajectories, publish versions, keep rollouts in flight."""
