"""The ledger: which offsets belong to which window, and what each load committed."""
