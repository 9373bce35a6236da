"""The columnar engine, which runs inside Spark's Python workers. It converts Kafka's record batches to Arrow columns
and writes the columns to Parquet files."""
