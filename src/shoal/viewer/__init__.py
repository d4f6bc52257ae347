"""Looking at a policy at play: on a page for the browser, or in a window. The only home of viser."""
