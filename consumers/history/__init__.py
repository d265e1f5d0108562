"""What reads stretches of the log and joins no group; it and `audit` alone may fold the journal."""
