"""Ranges of the log as records, without a group: offsets, selection, speed."""
