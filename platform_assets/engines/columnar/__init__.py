"""The columnar engine converts Kafka's record batches to Arrow columns and writes the columns to Parquet files, inside
Spark's Python workers."""
