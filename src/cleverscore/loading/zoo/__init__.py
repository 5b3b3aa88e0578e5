"""The paper's networks, and what is shipped of them."""
