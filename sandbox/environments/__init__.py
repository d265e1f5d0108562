"""The included environments; each module imports the library that it adapts, so import it late."""
