"""Worker processes: Python libraries that answer prompts, one JSON object per line."""
