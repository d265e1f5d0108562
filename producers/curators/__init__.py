"""Curators: rules that choose the next task from the outcomes so far, one per file."""
