# The policy server in a small image: no compiler, no training stack, no root.
#   docker build --tag ponn .
#   docker run --rm --publish 8000:8000 --volume "$PWD/clinic.ponn:/policy/clinic.ponn:ro" ponn \
#       ponn serve /policy/clinic.ponn --host 0.0.0.0
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN python -m venv /venv && \
    PIP_CONSTRAINT=/source/constraints.txt /venv/bin/python -m pip install --no-cache-dir ".[serve]"

FROM python:3.13-slim
COPY --from=build /venv /venv
RUN useradd --create-home --uid 10001 ponn && mkdir /decisions && chown ponn /decisions && chmod 700 /decisions
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
USER ponn
WORKDIR /home/ponn
EXPOSE 8000
VOLUME /decisions
HEALTHCHECK --interval=10s --timeout=3s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
CMD ["ponn", "--help"]
