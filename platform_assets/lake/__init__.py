"""The lake: raw tables written by Spark, and what their Delta logs tell without it."""
