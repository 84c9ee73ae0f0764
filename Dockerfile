# The sidecar, and the hook that its init container copies into an engine's pod: `ullage install-hook`.
# Any base with Python 3.10 or later and its module venv will do.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY instrumentation instrumentation
COPY service service
ENV PIP_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
# pip itself stays here: what runs has no use for it.
RUN python -m venv /build \
    && python -m venv --without-pip /venv \
    && /build/bin/pip wheel --quiet --no-deps --wheel-dir /wheels . \
    && /build/bin/pip --python /venv/bin/python install --quiet --compile "$(echo /wheels/*.whl)[sidecar]"

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
