"""Conduct a run from services to figures, on Kafka or on the in-memory log."""
