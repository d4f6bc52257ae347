"""Robot tasks from terms: observations, rewards, terminations, events, commands and actions as functions by name."""
