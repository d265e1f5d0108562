"""Rules for a factor of the scheduled learning rate, one per file."""
