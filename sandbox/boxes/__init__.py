"""Where the commands of agents run: one protocol, and a driver for each kind of box."""
