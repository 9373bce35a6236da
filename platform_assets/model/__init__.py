"""Pure values of the platform: offsets, windows, declarations. No I/O."""
