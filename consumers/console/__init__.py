"""What people look at, folded from the log alone: a run's figures, and the audit of the log."""
