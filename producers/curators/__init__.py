"""Curators: which task is drawn next, one rule to a file, folded from what became of the last."""
