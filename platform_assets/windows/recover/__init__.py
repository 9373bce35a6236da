"""Rebuilding the ledger from the tables, and windows of which only a part can be had."""
