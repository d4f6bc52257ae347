"""Pictures of one environment: recording, videos, MuJoCo's viewer window, and geometry for the web viewer."""
