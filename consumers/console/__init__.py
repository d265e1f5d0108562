"""What people look at, folded from the log alone; of all groups it alone may fold the journal."""
