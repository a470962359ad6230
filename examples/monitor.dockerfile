# docker build -f examples/monitor.dockerfile -t tranlogs-monitor .
# docker run --pid=host --network=host --read-only --tmpfs /tmp -v /srv/runs:/runs --stop-timeout 120 tranlogs-monitor
FROM python:3.12-slim
COPY . /src
RUN pip install --no-cache-dir '/src[monitor]' && rm -rf /src && useradd --uid 1000 trainer
USER 1000:1000
ENTRYPOINT ["tranlogs", "monitor", "/runs"]
CMD ["--budget", "20GiB", "--http", ":9464", "--json"]
