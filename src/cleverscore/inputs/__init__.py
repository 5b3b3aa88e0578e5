"""Inputs: checked examples, their target classes, and the balls around them."""
