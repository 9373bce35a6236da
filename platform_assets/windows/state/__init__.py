"""State tables: which changes are pending, and folding them into the current row of each key."""
