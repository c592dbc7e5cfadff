"""What a policy is worth: estimators, intervals, verdicts, subgroups, hidden causes; can one learn from this log."""
