"""Checks: facts of a table, the rules that judge them, and their reports."""
