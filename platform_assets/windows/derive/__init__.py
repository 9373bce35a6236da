"""Derived tables: SQL over other tables, computed again for the groups of rows that changed."""
