"""From samples to rows, and from rows to the pieces that a model is given."""
