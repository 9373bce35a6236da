"""Folding of changes into the current state of each key."""
