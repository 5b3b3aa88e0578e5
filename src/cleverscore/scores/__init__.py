"""From measurements to scores."""
