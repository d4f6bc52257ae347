"""Checks of what a training needs of this machine, shared by `train` and `doctor`."""
