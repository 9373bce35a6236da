"""Publishing rows of tables to Kafka topics."""
