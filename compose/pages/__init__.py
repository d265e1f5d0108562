"""What people are shown of a result, as tables and stories."""
