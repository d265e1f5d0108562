"""Limits of users, and the order in which their rollouts and calls start."""
