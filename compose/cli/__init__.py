"""The command line: what a person types, read, called and printed; nothing is decided here."""
