"""Changes of windows: the record of each key that counts, made from decoded windows."""
