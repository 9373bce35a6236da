"""Jobs that keep the lake's tables and Dagster's store small."""
