"""The life of a window: sealing, loading, re-loading, accepting a loss, rebuilding."""
