"""The judge: a patch in a fresh box, the reference's tests, and what may be believed of a run."""
