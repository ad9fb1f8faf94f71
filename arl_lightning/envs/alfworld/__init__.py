"""ALFWorld: household tasks in text, played by the real engine."""
