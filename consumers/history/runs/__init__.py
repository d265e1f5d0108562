"""Runs of a trainer: curve, figures, training data, and training again from the record."""
