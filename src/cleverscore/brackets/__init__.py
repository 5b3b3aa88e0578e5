"""What stands above and below the score."""
