"""Steps A and B and reward models, as sums that merge."""
