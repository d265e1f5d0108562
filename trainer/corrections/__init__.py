"""Corrections, one to a file: what a token's cost weighs where the engine is not the trainer."""
