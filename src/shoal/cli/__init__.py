"""The voice of Shoal: reading the command line, and everything that a person sees. Only home of tyro and rich."""
