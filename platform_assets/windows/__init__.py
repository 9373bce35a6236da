"""The life of a window: sealing, loading, loading again, accepting a loss, rebuilding."""
