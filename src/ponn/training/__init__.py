"""Step C: networks, what they minimise, the loop, the stream, many processes."""
