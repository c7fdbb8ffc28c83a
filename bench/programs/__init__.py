"""Programs that generate text from one model, run side by side: pymtp, llama.cpp's own, llama-cpp-python.

Each runs in processes of its own and is asked in turn; none computes while another does.
"""
