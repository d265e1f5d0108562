"""Penalties for the distance from a frozen reference, one KL estimate per file."""
