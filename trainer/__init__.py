"""Curation, advantages, losses, steps, checkpoints and weights; independent of Kafka."""
