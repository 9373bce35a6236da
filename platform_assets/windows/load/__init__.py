"""Sealing a window, and loading it into its raw table."""
