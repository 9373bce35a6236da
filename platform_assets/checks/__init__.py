"""Checks: the facts of a table, the rules that evaluate these facts, and the reports."""
