"""The command `platform-assets`."""
