"""Curation, advantages, losses, steps, checkpoints and weights; knows no Kafka."""
