"""What measures a classifier near an input: searches for large gradients and for the nearest crossing."""
