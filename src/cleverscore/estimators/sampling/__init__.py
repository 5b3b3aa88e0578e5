"""Block maxima of gradient norms at random points."""
