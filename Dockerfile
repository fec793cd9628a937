# CPU only, one user without rights, the collection on a volume:
#   docker build -t deepfishing .
#   docker run --rm -v "$PWD/photos:/data/photos:ro" -v "$PWD/store:/data/store" deepfishing extract photos store
FROM python:3.11-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 DEEPFISHING_HOME=/data/home
WORKDIR /app
# torch first, from the index of its CPU builds: the usual one brings gigabytes of CUDA
RUN pip install "torch==2.13.0" --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# hadolint ignore=DL3013
RUN pip install ".[onnxruntime]" \
    && useradd --create-home --uid 1000 deepfish \
    && mkdir -p /data \
    && chown deepfish:deepfish /data
USER 1000
WORKDIR /data
VOLUME /data
EXPOSE 8765
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 8765), 5).close()"]
ENTRYPOINT ["deepfish"]
CMD ["serve", "store", "--host", "0.0.0.0", "--port", "8765"]
