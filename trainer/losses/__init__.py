"""Losses, one to a file: J per token, to be maximised, of what a batch's tokens are worth."""
