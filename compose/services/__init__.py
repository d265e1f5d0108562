"""Broker and registry on this machine: artifacts by digest, put up, looked at, taken down."""
