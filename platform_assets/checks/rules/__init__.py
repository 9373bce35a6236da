"""The checks of a table, one a module."""
