"""PONN-DR, the default learner."""
