"""The training group: scored trajectories in, versions out, rollouts kept in the air."""
