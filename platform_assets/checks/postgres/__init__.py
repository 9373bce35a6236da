"""Comparison of a topic's rows with the table in PostgreSQL from which Debezium's connector made its records."""
