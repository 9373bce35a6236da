"""Decisions of operators about windows and topics: parking, losses, generations, clusters."""
