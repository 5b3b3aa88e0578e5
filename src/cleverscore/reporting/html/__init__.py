"""Reports as one HTML page."""
