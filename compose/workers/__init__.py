"""Worker processes: their assembly, start, end, and restart."""
