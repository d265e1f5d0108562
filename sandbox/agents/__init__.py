"""Third-party agents that talk to an HTTP endpoint, run as processes of a worker."""
