"""Training runs: recipes, their folders on disk, and their policies as model directories."""
