"""What runs in processes of their own: Python libraries that answer prompts, one JSON object a line."""
