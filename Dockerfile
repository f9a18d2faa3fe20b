# The mesh's images, one target each:
#
#   base       coordinator, taskset, command line: no torch
#   explorer   base and vLLM
#   trainer    base and Megatron-core
#
#   docker build --target explorer --build-arg DEVICE=gpu -t trinity-bus/explorer .
#
# Packages are layers below the code, so that a change of the code rebuilds in seconds; explorer and trainer share the
# layer of torch, by far the largest. Everything is pinned by requirements/images/*.lock, with hashes.
#
# A container is healthy while its service is ready (/readyz). What is no service, such as "topics create", has no health:
# run it with --no-healthcheck.

ARG PYTHON_IMAGE=python:3.12-slim-bookworm
ARG DEVICE=cpu

FROM ${PYTHON_IMAGE} AS python
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN useradd --uid 10001 --create-home --home-dir /home/trinity --shell /usr/sbin/nologin trinity \
    && useradd --uid 10002 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin workflows \
    && install -d -o trinity -g trinity /model /checkpoints /console
# The slim images come without the standard library's bytecode, and no container could keep it: each start would compile.
RUN python -m compileall -q -x 'site-packages|/test' /usr/local/lib/python3.12

# ---------------------------------------------------------------------------------------------------------- packages

FROM python AS base-packages
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=requirements/images/base.lock,target=/tmp/base.lock \
    pip install --no-deps --require-hashes -r /tmp/base.lock

FROM base-packages AS torch-packages
ARG DEVICE
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=requirements/images,target=/tmp/locks \
    pip install --no-deps --require-hashes -r /tmp/locks/torch-${DEVICE}.lock

# The CPU build of vLLM binds threads and memory through libnuma. On GPUs, Triton compiles what launches its kernels while
# engine and trainer run.
FROM torch-packages AS compute-packages
ARG DEVICE
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1 $([ "$DEVICE" = gpu ] && echo gcc libc6-dev) \
    && rm -rf /var/lib/apt/lists/*

FROM compute-packages AS explorer-packages
ARG DEVICE
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=requirements/images,target=/tmp/locks \
    pip install --no-deps --require-hashes -r /tmp/locks/explorer-${DEVICE}.lock

FROM compute-packages AS trainer-packages
ARG DEVICE
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=requirements/images,target=/tmp/locks \
    pip install --no-deps --require-hashes -r /tmp/locks/trainer-${DEVICE}.lock

# -------------------------------------------------------------------------------------------------------------- code

FROM python AS wheel
WORKDIR /source
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=requirements/images/build.lock,target=/tmp/build.lock \
    pip install --no-deps --require-hashes -r /tmp/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY trinity_bus trinity_bus
COPY workers workers
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheel .

# ------------------------------------------------------------------------------------------------------------ images

FROM base-packages AS base
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip install --no-deps --no-index /wheel/*.whl
ENV TRINITY_BUS_HEALTH__PORT=8080
HEALTHCHECK --start-period=10m --start-interval=3s --interval=15s --timeout=15s --retries=4 \
    CMD ["bash", "/usr/local/lib/python3.12/site-packages/trinity_bus/health/probe.sh"]
USER 10001:10001
WORKDIR /home/trinity
ENTRYPOINT ["trinity-bus"]
CMD ["--help"]

FROM explorer-packages AS explorer
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip install --no-deps --no-index /wheel/*.whl
ENV TRINITY_BUS_HEALTH__PORT=8080
HEALTHCHECK --start-period=10m --start-interval=3s --interval=15s --timeout=15s --retries=4 \
    CMD ["bash", "/usr/local/lib/python3.12/site-packages/trinity_bus/health/probe.sh"]
USER 10001:10001
WORKDIR /home/trinity
ENTRYPOINT ["trinity-bus"]
CMD ["run", "explorer"]

FROM trainer-packages AS trainer
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip install --no-deps --no-index /wheel/*.whl
ENV TRINITY_BUS_HEALTH__PORT=8080
HEALTHCHECK --start-period=10m --start-interval=3s --interval=15s --timeout=15s --retries=4 \
    CMD ["bash", "/usr/local/lib/python3.12/site-packages/trinity_bus/health/probe.sh"]
USER 10001:10001
WORKDIR /home/trinity
ENTRYPOINT ["trinity-bus"]
CMD ["run", "trainer"]
