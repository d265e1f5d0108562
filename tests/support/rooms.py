"""The folders of the product: what is imported as `rollcall.*` stands in these."""

ROOMS = (
    "schemas",
    "producers",
    "consumers",
    "inference",
    "sandbox",
    "trainer",
    "compose",
    "rollcall",
)
