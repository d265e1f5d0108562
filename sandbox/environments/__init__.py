"""The environments that are shipped; a module here imports what it adapts, so import it late."""
