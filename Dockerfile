# Two images: `--target operator` watches Speedruns, `--target trainer` is what GPU pods run. docs/install.md builds them.
#
# The bases are arguments, by tag or by digest (NAME:TAG or NAME@sha256:...).
ARG OPERATOR_BASE=docker.io/library/debian:12.12-slim
ARG TRAINER_BASE=docker.io/nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04

# Two secrets are for who builds behind a package mirror; without them pip asks where it asks by default:
# `pip` is a pip.conf, and `ca` the authorities that it may name as `cert = /run/secrets/ca`.

# ---- the operator

FROM ${OPERATOR_BASE} AS python
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log

FROM python AS installed
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
# pip stays in an environment of its own: it installs into the other, and is not part of the image.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/speedrun
WORKDIR /src
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY pyproject.toml constraints.txt ./
# What the operator needs comes before its code, which changes more often.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \
    --mount=type=cache,target=/root/.cache/pip \
    python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        >requirements.txt \
    && /opt/pip/bin/pip --python /opt/speedrun/bin/python install -r requirements.txt
COPY LICENSE README.md ./
COPY operator operator
COPY trainer trainer
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \
    --mount=type=cache,target=/root/.cache/pip \
    /opt/pip/bin/pip --python /opt/speedrun/bin/python install --no-deps .

FROM python AS operator
COPY --from=installed /opt/speedrun /opt/speedrun
ENV PATH=/opt/speedrun/bin:/usr/bin:/bin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A number, so that `runAsNonRoot` can be checked. Any other works as well: nothing here belongs to it.
USER 65532:65532
WORKDIR /
STOPSIGNAL SIGTERM
ENTRYPOINT ["speedrun-operator"]
CMD ["run"]
ARG OPERATOR_BASE
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="speedrun-operator" \
      org.opencontainers.image.description="Runs Speedrun resources as Slurm jobs or pods and reports their results" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${OPERATOR_BASE}"

# ---- the trainer

FROM ${TRAINER_BASE} AS trainer
# 0 leaves out what only a machine with CUDA can have: the check of the base's runtime and the attention kernel.
ARG CUDA=1
# The version that constraints.txt names. Empty index: torch comes from where pip gets the rest.
ARG TORCH=torch==2.11.0
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cu130
# What the system steps of the recipes install; pods cannot.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        build-essential ca-certificates git python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && if [ "$CUDA" = 1 ]; then test -e /usr/local/cuda/lib64/libcudart.so.13; fi
RUN python3 -m venv /opt/venv
WORKDIR /opt/trainer
# Gigabytes, which change less often than the rest of the constraints.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \
    --mount=type=cache,target=/root/.cache/pip \
    /opt/venv/bin/pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$TORCH"
COPY constraints.txt pyproject.toml ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \
    --mount=type=cache,target=/root/.cache/pip \
    /opt/venv/bin/python -c 'import tomllib; \
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
print(*extras["trainer"], *extras["text"], sep="\n")' >requirements.txt \
    && /opt/venv/bin/pip install -c constraints.txt -r requirements.txt \
    && if [ "$CUDA" = 1 ]; then /opt/venv/bin/pip install -c constraints.txt 'flash-attn-4[cu13]==4.0.0b36' nvidia-cutlass-dsl==4.8.1; fi
COPY trainer/speedrun_trainer speedrun_trainer
RUN /opt/venv/bin/python -c 'import pathlib, sysconfig; \
pathlib.Path(sysconfig.get_path("purelib"), "speedrun-trainer.pth").write_text("/opt/trainer\n")' \
    && /opt/venv/bin/python -m compileall -q speedrun_trainer
# A home and a name, for users without a line in passwd: compilers keep their caches by them.
ENV PATH=/opt/venv/bin:$PATH LANG=C.UTF-8 PYTHONUNBUFFERED=1 HOME=/tmp LOGNAME=speedrun
USER 1000:1000
WORKDIR /
CMD ["bash"]
ARG TRAINER_BASE
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="speedrun-trainer" \
      org.opencontainers.image.description="torch and the trainer of the recipes gpt2-small and smoke, for GPU pods" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${TRAINER_BASE}"
