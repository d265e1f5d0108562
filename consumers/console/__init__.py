"""The console: what the log tells people; of all groups it alone may fold the journal."""
