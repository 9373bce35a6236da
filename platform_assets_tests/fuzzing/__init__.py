"""Fuzzing of everything that an attacker controls: `running` runs cases; the other modules define them."""
