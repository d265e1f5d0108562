"""Distillation rules: terms of a teacher added to the advantage, one per file."""
