"""What a log is, wherever its rows are: how it is read, split, encoded and recognised."""
