"""The text output of results, as tables and stories."""
