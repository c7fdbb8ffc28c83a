# pymtp on CPUs; compose.yaml has the arguments that make it an image for NVIDIA GPUs.
#
#   docker build -t pymtp .
#   docker run -p 127.0.0.1:8080:8080 pymtp                        serves the embedded model
#   docker run -p 127.0.0.1:8080:8080 -v ~/models:/models -e LLAMA_ARG_MODEL=/models/model.gguf pymtp
#   docker run -p 127.0.0.1:8080:8080 -v models:/models -e LLAMA_ARG_HF_REPO=user/repo:Q4_K_M pymtp
#   docker run --rm pymtp run "Tell me about the sea."
#
# LLAMA_ARG_* are llama-server's variables, LLAMA_API_KEY is the key: docs/server.md.

ARG BUILD=debian:12-slim
ARG RUN=debian:12-slim

FROM ${BUILD} AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates g++ git python3-dev python3-venv
WORKDIR /src
COPY requirements requirements
RUN python3 -m venv /tools && /tools/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt && \
    python3 -m venv /opt/pymtp && /opt/pymtp/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt
COPY . .
ARG CMAKE_ARGS="-DPYMTP_PORTABLE=ON"
RUN PATH="/tools/bin:$PATH" pip wheel --no-build-isolation --no-deps -w /wheels . && \
    /opt/pymtp/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM ${RUN}
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libgomp1 python3 && \
    rm -rf /var/lib/apt/lists/* && \
    useradd --uid 10001 --create-home pymtp && install -d -o pymtp /models
COPY --from=build /opt/pymtp /opt/pymtp
ENV PATH=/opt/pymtp/bin:$PATH HF_HOME=/models LLAMA_ARG_HOST=0.0.0.0 LLAMA_ARG_PORT=8080
USER 10001
VOLUME /models
EXPOSE 8080
# a large model takes minutes to load, and answers 503 until then
HEALTHCHECK --start-period=15m --interval=10s --timeout=5s CMD ["python3", "-c", \
    "import os, urllib.request as r; r.urlopen('http://127.0.0.1:%s/health' % os.environ['LLAMA_ARG_PORT'])"]
ENTRYPOINT ["pymtp"]
CMD ["serve"]
