"""The models group: answers model calls, each with the version that the call asks for."""
