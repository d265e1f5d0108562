"""The names of our own packages."""

ROOMS = (
    "schemas", "producers", "consumers", "inference", "sandbox", "trainer", "compose", "rollcall",
)  # fmt: skip
"""The public face among them; a user's module of such a name is never found."""
