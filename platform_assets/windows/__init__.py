"""The life of a window: sealed, loaded, loaded again, given up, rebuilt."""
