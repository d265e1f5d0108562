"""Losses, one per file: an objective J per token, to be maximised."""
