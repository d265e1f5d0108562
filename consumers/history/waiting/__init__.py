"""Work that is not done: open commands, the limits that it waits for, and skipped ranges."""
