"""Worker processes: how each is put together, may begin, leaves, and is started again."""
