"""The server, its decision log and its page."""
