"""Loading a range of a topic again, into a separate table, and comparing the two tables."""
