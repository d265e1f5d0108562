"""Readers of topics: the loop, its two logs, and one module or folder per consumer group."""
