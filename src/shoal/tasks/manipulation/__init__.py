"""Manipulation tasks of a fixed arm."""
