"""Pictures of one environment: recording, films, MuJoCo's viewer window, and geometry for the web viewer."""
