# mgg and all that it needs, for CPUs; with GPU kernels on a CUDA image, which are built without a GPU:
#   docker build -t mgg .
#   docker build -t mgg --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 .
ARG BASE=ubuntu:24.04
FROM ${BASE}
ARG PIP_INSTALL_FLAGS=""
COPY . /opt/mgg
RUN /opt/mgg/.ci/image
ENV PATH=/opt/mgg/.venv/bin:${PATH}
WORKDIR /work
ENTRYPOINT ["mgg"]
CMD ["--help"]
