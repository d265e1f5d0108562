"""The agents group: the pure fold, agent programs, and the worker that carries out effects."""
