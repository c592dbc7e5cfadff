"""What is computed about a policy, and how it is shown."""
