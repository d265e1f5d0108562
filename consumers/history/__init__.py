"""Readers of ranges of the log without a group; only they and `audit` may fold the journal."""
