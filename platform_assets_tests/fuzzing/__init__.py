"""Fuzzing of everything that a stranger controls: `running` runs cases, the other modules define them."""
