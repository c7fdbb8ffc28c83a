"""Programs that generate text from one model, run side by side: pymtp, llama.cpp's own, llama-cpp-python.

Each runs in its own processes; they answer in turn, so that only one computes at a time.
"""
