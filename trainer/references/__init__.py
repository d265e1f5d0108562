"""What going away from a frozen reference costs, one estimate to a file."""
