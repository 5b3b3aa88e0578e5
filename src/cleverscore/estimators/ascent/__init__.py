"""The search of the sharp method: descents to the decision boundary, then ascents across shells."""
