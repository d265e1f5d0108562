"""Grading: a patch in an unused box, the reference's tests, and checks of a run's results."""
