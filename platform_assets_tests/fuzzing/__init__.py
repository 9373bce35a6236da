"""Fuzzing of everything that a stranger controls: see `running` for how cases are run, and the other modules for what they try."""
