# An image of the library with its programs; docs/guides/clusters.md has its commands.
FROM python:3.11-slim

RUN apt-get update && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/*
COPY . /tff_pfl
# `make gpu` adds the CUDA libraries: docker build --build-arg TARGET=gpu
ARG TARGET=venv
RUN make --directory=/tff_pfl $TARGET
ENV PATH=/tff_pfl/.venv/bin:$PATH
WORKDIR /work
CMD ["tff-pfl", "--help"]
