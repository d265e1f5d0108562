"""From scored trajectories to complete groups: which are trained on, and when."""
