"""How large a step is taken beside what the schedule says, one rule to a file."""
