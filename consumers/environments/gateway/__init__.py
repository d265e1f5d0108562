"""The HTTP server through which agents' processes reach their sessions."""
