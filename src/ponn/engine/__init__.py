"""Where passes over shards run: here, in processes, on Ray or Spark. It knows shards by name only."""
