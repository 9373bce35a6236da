"""Load engines: what reads Kafka and writes data files."""
