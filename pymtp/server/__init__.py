"""An HTTP server for a model: the APIs of OpenAI, Anthropic and llama-server.

Owns requests and answers as HTTP sees them. Generates nothing itself: pymtp.Model does, in its own thread.
"""
