"""What stands above and below the score: attacks, certified bounds and signs of masked gradients."""
