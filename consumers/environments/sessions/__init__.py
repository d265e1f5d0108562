"""Sessions of environments: on threads or on the event loop, with their slots and time limits."""
