"""The state that a trainer resumes from, and how it is stored."""
