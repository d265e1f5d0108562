"""The models group: calls in, continuations out, each from the version that was asked for."""
