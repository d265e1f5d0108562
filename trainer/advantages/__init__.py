"""Advantage rules, one to a file: the rewards of a batch in, what its tokens are worth out."""
