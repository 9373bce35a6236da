"""Product suggestions: items that the same users have in common, from exact counts of pairs."""
