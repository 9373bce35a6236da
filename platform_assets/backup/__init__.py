"""Backups of a lake and of Dagster's home: taken while loads run, and restored completely or in parts."""
