"""Viewers of a policy: a web page (viser) and MuJoCo's window."""
