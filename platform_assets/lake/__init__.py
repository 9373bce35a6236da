"""What the tables' Delta logs and files say, read without Spark."""
