#!/usr/bin/env python3
"""Writes Skein's Grafana dashboards, dashboards/*.json.

    deploy/observability/grafana/dashboards.py            # writes them
    deploy/observability/grafana/dashboards.py --check    # fails if a file differs from what this would write

tests/observability/run sends every query to a Prometheus that scrapes a running cluster. Standard library
only.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent / "dashboards"
SCHEMA_VERSION = 39  # of Grafana 11; later ones migrate it
GRID_COLUMNS = 24
STAT_WIDTH, STAT_HEIGHT = 4, 4
GRAPH_WIDTH, GRAPH_HEIGHT = 8, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Outside Kubernetes no series has a namespace; the variable's "All" matches those too.
NAMESPACE = 'namespace=~"$namespace"'
CLUSTER = f'{NAMESPACE},job="$job",model_name=~"$model"'
WORKER = f'{NAMESPACE},job="skein-worker",model_name=~"$model",instance=~"$instance"'


def rate(metric, by="", of=CLUSTER, extra=""):
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({metric}{{{of}{extra}}}[$__rate_interval]))"


def quantiles(metric, of=CLUSTER):
    return [
        (f"histogram_quantile({q}, {rate(metric + '_bucket', 'le', of)})", f"p{round(q * 100)}")
        for q in (0.5, 0.9, 0.99)
    ]


def mean(metric, of, by="instance"):
    return f"{rate(metric + '_sum', by, of)} / {rate(metric + '_count', by, of)}"


def worker(metric):
    """State of each worker; every router reports it."""
    return (f"max by (worker) ({metric}{{{CLUSTER}}})", "{{worker}}")


def instance(metric):
    return (f"{metric}{{{WORKER}}}", "{{instance}}")


def stat(title, unit, query, red_above=None):
    steps = [{"color": "green", "value": None}]
    if red_above is not None:
        steps.append({"color": "red", "value": red_above})
    return {"type": "stat", "title": title, "unit": unit, "queries": [(query, "")], "steps": steps}


def graph(title, unit, *queries, about=""):
    return {"type": "timeseries", "title": title, "unit": unit, "queries": list(queries), "about": about}


SERVICE = [
    stat("Requests lost", "short", f"sum(skein_requests_lost_total{{{CLUSTER}}})", red_above=1),
    stat("Requests", "reqps", rate("skein_requests_total")),
    stat("Refused", "percentunit", f"{rate('skein_requests_refused_total')} / ({rate('skein_requests_total')}"
         f" + {rate('skein_requests_refused_total')})", red_above=0.05),
    stat("First token, p99", "s", quantiles("vllm:time_to_first_token_seconds")[2][0], red_above=5),
    stat("Output", "tok/s", rate("vllm:generation_tokens_total")),
    stat("Ready workers", "short", f"max(skein_workers_ready{{{CLUSTER}}})"),
    graph("Time to the first token", "s", *quantiles("vllm:time_to_first_token_seconds"),
          about="From arrival at this tier; tokenisation and all queues included."),
    graph("Time between tokens", "s", *quantiles("vllm:inter_token_latency_seconds")),
    graph("Mean time per output token of a sample", "s", *quantiles("vllm:request_time_per_output_token_seconds")),
    graph("Requests by outcome", "reqps", (rate("skein_request_outcomes_total", "outcome"), "{{outcome}}")),
    graph("Refused requests by code", "reqps", (rate("skein_requests_refused_total", "code"), "{{code}}")),
    graph("HTTP answers", "reqps", (rate("http_requests_total", "handler, status"), "{{handler}} {{status}}")),
    graph("Whole requests", "s", *quantiles("vllm:e2e_request_latency_seconds")),
    graph("Samples by why they ended", "short", (rate("vllm:request_success_total", "finished_reason"), "{{finished_reason}}")),
    graph("Tokens", "tok/s", (rate("vllm:prompt_tokens_total"), "prompt"),
          (rate("vllm:prompt_tokens_cached_total"), "prompt, cached"), (rate("vllm:generation_tokens_total"), "output")),
    graph("Requests in flight", "short", (f"sum(skein_requests_in_flight{{{CLUSTER}}})", "in flight"),
          (f"max(vllm:num_requests_running{{{CLUSTER}}})", "sequences running"),
          (f"max(vllm:num_requests_waiting{{{CLUSTER}}})", "sequences waiting")),
    graph("Prompt length", "short", *quantiles("vllm:request_prompt_tokens")),
    graph("Answer length", "short", *quantiles("vllm:request_generation_tokens")),
]

WORKERS = [
    graph("Running sequences", "short", instance("vllm:num_requests_running")),
    graph("Waiting sequences", "short", instance("vllm:num_requests_waiting")),
    graph("Requests in progress", "short", instance("skein_worker_streams")),
    graph("KV cache in use", "percentunit", instance("vllm:kv_cache_usage_perc"),
          about="Blocks that are only cached count as free."),
    graph("Prefix cache hits", "percentunit", (
        f"{rate('vllm:prefix_cache_hits_total', 'instance', WORKER)} / "
        f"{rate('vllm:prefix_cache_queries_total', 'instance', WORKER)}", "{{instance}}")),
    graph("Preemptions", "ops", (rate("vllm:num_preemptions_total", "instance", WORKER), "{{instance}}")),
    graph("Engine step", "s", *quantiles("skein_engine_step_seconds", WORKER)),
    graph("Engine steps", "ops", (rate("skein_engine_steps_total", "instance", WORKER), "{{instance}}")),
    graph("Mean tokens of a step", "short", (mean("vllm:iteration_tokens_total", WORKER), "{{instance}}")),
    graph("Queue", "s", *quantiles("vllm:request_queue_time_seconds", WORKER)),
    graph("Prefill", "s", *quantiles("vllm:request_prefill_time_seconds", WORKER)),
    graph("Decode", "s", *quantiles("vllm:request_decode_time_seconds", WORKER)),
    graph("Tokens", "tok/s", (rate("vllm:prompt_tokens_total", "instance", WORKER), "{{instance}} prompt"),
          (rate("vllm:generation_tokens_total", "instance", WORKER), "{{instance}} output")),
    graph("Requests by how they ended here", "reqps",
          (rate("skein_worker_request_outcomes_total", "outcome", WORKER), "{{outcome}}"),
          about="handed_back: the worker is draining and a router moves the request."),
    graph("First token to end, mean", "s", (mean("vllm:request_decode_time_seconds", WORKER), "{{instance}}")),
    graph("Processor", "short", (rate("process_cpu_seconds_total", "instance", WORKER), "{{instance}}")),
    graph("Memory", "bytes", instance("process_resident_memory_bytes")),
    graph("Free KV blocks", "short", instance("skein_worker_free_blocks"),
          (f"vllm:cache_config_info{{{WORKER}}} * on (instance) skein_worker_kv_blocks{{{WORKER}}}", "{{instance}} of all")),
]

ROUTING = [
    stat("Ready workers", "short", f"max(skein_workers_ready{{{CLUSTER}}})"),
    stat("Known workers", "short", f"max(skein_workers{{{CLUSTER}}})"),
    stat("Moves in the last hour", "short", f"sum(increase(skein_request_moves_total{{{CLUSTER}}}[1h]))"),
    stat("Resumed in the last hour", "short", f"sum(increase(skein_requests_resumed_total{{{CLUSTER}}}[1h]))"),
    stat("Requests lost", "short", f"sum(skein_requests_lost_total{{{CLUSTER}}})", red_above=1),
    stat("Prefix cache hits", "percentunit",
         f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}"),
    graph("Ready", "short", worker("skein_worker_ready")),
    graph("Running sequences", "short", worker("skein_worker_running")),
    graph("Waiting sequences", "short", worker("skein_worker_waiting")),
    graph("Prompt tokens still to prefill", "short", worker("skein_worker_queued_tokens"),
          about="Routing sends a request where its first token comes soonest; this is the queue it sees."),
    graph("Blocks in the prefix index", "short", worker("skein_worker_indexed_blocks")),
    graph("KV cache in use", "percentunit", (
        f"1 - max by (worker) (skein_worker_free_blocks{{{CLUSTER}}}) / "
        f"(max by (worker) (skein_worker_kv_blocks{{{CLUSTER}}}) > 0)", "{{worker}}")),
    graph("Moves to another worker", "ops", (rate("skein_request_moves_total"), "moves"),
          (rate("skein_requests_moved_total"), "requests moved"), about="Counted when the request ends."),
    graph("Resumed by a client or gateway", "reqps", (rate("skein_requests_resumed_total"), "resumed")),
    graph("Admitted tokens", "short", (f"skein_admitted_tokens{{{CLUSTER}}}", "{{instance}}"),
          about="Bounded by --max-num-queued-tokens."),
    graph("Processor of the router", "short", (rate("process_cpu_seconds_total", "instance"), "{{instance}}")),
    graph("Memory of the router", "bytes", (f"process_resident_memory_bytes{{{CLUSTER}}}", "{{instance}}")),
    graph("Open files of the router", "percentunit",
          (f"process_open_fds{{{CLUSTER}}} / process_max_fds{{{CLUSTER}}}", "{{instance}}")),
]


def variable(name, label, query, several):
    return {
        "name": name, "label": label, "type": "query", "datasource": DATASOURCE, "refresh": 2, "sort": 1,
        "query": {"query": query, "refId": name},
        "multi": several, "includeAll": several, **({"allValue": ".*"} if several else {}),
        "current": {"selected": True, "text": "All", "value": "$__all"} if several else {},
    }


def panel(identity, source, x, y):
    is_stat = source["type"] == "stat"
    defaults = {"unit": source["unit"], "min": 0}
    if is_stat:
        defaults["thresholds"] = {"mode": "absolute", "steps": source["steps"]}
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value"}
    else:
        defaults["custom"] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    targets = [
        {"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": query, "legendFormat": legend or "__auto"}
        for i, (query, legend) in enumerate(source["queries"])
    ]
    width, height = (STAT_WIDTH, STAT_HEIGHT) if is_stat else (GRAPH_WIDTH, GRAPH_HEIGHT)
    return {
        "id": identity, "type": source["type"], "title": source["title"], "description": source.get("about", ""),
        "datasource": DATASOURCE, "gridPos": {"x": x, "y": y, "w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options, "targets": targets,
    }


def dashboard(uid, title, sources, variables):
    panels, x, y = [], 0, 0
    for identity, source in enumerate(sources, 1):
        panels.append(panel(identity, source, x, y))
        place = panels[-1]["gridPos"]
        x += place["w"]
        if x >= GRID_COLUMNS:
            x, y = 0, y + place["h"]
    datasource = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}
    return {
        "uid": uid, "title": title, "tags": ["skein"], "schemaVersion": SCHEMA_VERSION, "editable": True,
        "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "templating": {"list": [datasource, *variables]}, "annotations": {"list": []}, "panels": panels,
        "links": [{"type": "dashboards", "title": "Skein", "tags": ["skein"], "asDropdown": False, "keepTime": True}],
    }


def dashboards():
    of = f"{{{NAMESPACE}}}"
    namespace = variable("namespace", "Namespace", "label_values(skein_build_info, namespace)", several=True)
    tier = variable("job", "Tier", f"label_values(skein_requests_total{of}, job)", several=False)
    model = variable("model", "Model", f"label_values(skein_build_info{of}, model_name)", several=True)
    steps = f'skein_engine_steps_total{{{NAMESPACE},job="skein-worker"}}'
    workers = variable("instance", "Worker", f"label_values({steps}, instance)", several=True)
    cluster = [namespace, tier, model]
    return {
        "service.json": dashboard("skein-service", "Skein: service level", SERVICE, cluster),
        "workers.json": dashboard("skein-workers", "Skein: workers and KV caches", WORKERS, [namespace, model, workers]),
        "routing.json": dashboard("skein-routing", "Skein: routing and resume", ROUTING, cluster),
    }


def main():
    stale = []
    for name, content in dashboards().items():
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        file = HERE / name
        if sys.argv[1:] == ["--check"]:
            stale += [] if file.exists() and file.read_text() == text else [name]
        else:
            file.write_text(text)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what dashboards.py writes; run it and commit the result")


main()
