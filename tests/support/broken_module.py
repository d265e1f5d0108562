"""A user's module that cannot be imported."""

msg = "no such weather"
raise RuntimeError(msg)
