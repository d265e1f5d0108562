"""The table `[learner]` of a recipe, and the checks of its values."""
