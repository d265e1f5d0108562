"""Agents of other people: installed by name, and tried."""
