"""Load engines, which read Kafka and write data files."""
