"""Two replicas of a model behind one address: python docs/examples/ray_serve.py [MODEL.gguf].

Then: curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'
"""

import sys

from ray import serve

from pymtp.ray import serve_application

application = serve_application(sys.argv[1] if sys.argv[1:] else None, replicas=(2, 4), n_ctx=2048, n_threads=1)

if __name__ == "__main__":
    serve.run(application, blocking=True)
