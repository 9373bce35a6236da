"""Checks: facts of a table, rules that evaluate them, and reports."""
