"""Importance corrections for the mismatch of engine and trainer, one rule per file."""
