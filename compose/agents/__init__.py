"""Third-party agents: install them by name, and try them."""
