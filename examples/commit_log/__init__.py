"""Commit log: a key-value store that is rebuilt from its log, as it was at the end of any window."""
