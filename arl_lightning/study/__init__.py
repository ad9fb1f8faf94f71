"""The testbed: whole runs compared with each other."""
