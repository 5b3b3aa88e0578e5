"""What is scored: checked inputs, their targets, and the balls around them."""
