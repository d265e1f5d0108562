"""A file per agent, run in the agent's Python: `prepare` imports, `run(task, url, key)` works."""
