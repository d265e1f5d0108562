"""The boxes that agents' commands run in: one protocol, and a driver for each kind of box."""
