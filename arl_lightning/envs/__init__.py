"""Gymnasium environments with text observations and actions, one task family each."""
