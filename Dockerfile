# The sidecar, and the hook that its init container copies into an engine's pod: `ullage install-hook`.
# Any base with Python 3.11 or later and its module venv will do. For a build that can be repeated, name it by digest:
#   docker build --build-arg BASE=python:3.13-slim@sha256:DIGEST -t ullage .
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements-image.txt requirements-image-build.txt ./
COPY instrumentation instrumentation
COPY service service
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ONLY_BINARY=:all: \
    PIP_QUIET=1
# Everything that is downloaded has its hash checked, the build backend included. pip itself stays in this stage.
RUN python -m venv /build \
    && python -m venv --without-pip /venv \
    && /build/bin/pip install --require-hashes --requirement requirements-image-build.txt \
    && /build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
    && /build/bin/pip --python /venv/bin/python install --compile --require-hashes --requirement requirements-image.txt \
    && /build/bin/pip --python /venv/bin/python install --compile --no-deps /wheels/*.whl

FROM ${BASE}
LABEL org.opencontainers.image.title="ullage" \
      org.opencontainers.image.description="Watches the pre-allocated buffers of an LLM inference server" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
COPY --from=build /venv /venv
# Nothing is written outside the volumes: the root may be read-only.
ENV PATH=/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 9877
ENTRYPOINT ["ullage"]
CMD ["serve", "--host", "0.0.0.0"]
