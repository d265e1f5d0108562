"""A step of the optimiser: passes, gradients, updates, in one process or several."""
