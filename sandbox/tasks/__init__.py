"""Tasks as directories: read and checked, imported, built from releases, named in requests."""
