"""Task directories: reading, checking, importing, building from releases, naming in requests."""
