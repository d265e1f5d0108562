"""Modules that run only in containers: see README.md beside this file."""
