"""Use cases of Kafka as small projects, each with YAML, real data and a comparison. `make example NAME=…` runs one."""
