"""What runs in containers only: see README.md beside this file."""
