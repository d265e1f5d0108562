"""Where `old` comes from, one way to a file: the trainer's own network when a token was sampled."""
