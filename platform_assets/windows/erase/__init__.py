"""Erasing records from every table and file of a topic."""
