"""Pictures of one environment: recording, videos, MuJoCo's viewer window, and arrays for the web viewer."""
