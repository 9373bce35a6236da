"""Rebuilding the ledger from the tables, and accepting windows that are only partly available."""
