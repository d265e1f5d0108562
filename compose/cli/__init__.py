"""The command line: it parses options, calls functions and prints results; no logic of its own."""
