"""The studio: from a table to a policy in the browser."""
