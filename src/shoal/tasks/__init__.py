"""What can be trained: a registry of names, and a package for each family of tasks that ships with Shoal."""
