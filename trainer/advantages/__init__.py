"""Advantage rules, one per file: from the rewards of a batch to advantages of its tokens."""
