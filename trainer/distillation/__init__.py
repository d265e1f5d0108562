"""What is learned from a teacher: terms beside the advantage, one file each."""
