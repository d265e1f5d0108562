"""The learner's configuration: the table `[learner]` of a recipe, checked before a model is loaded."""
