"""Evaluation jobs: a queue of episodes that workers share, what they write, and what is computed from it."""
