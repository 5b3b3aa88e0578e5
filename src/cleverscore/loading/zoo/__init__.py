"""The paper's small networks and the shipped data."""
