"""Broker and registry on this machine: fetch by digest, start, inspect, stop."""
