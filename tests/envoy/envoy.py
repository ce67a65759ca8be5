"""An Envoy whose requests go where an endpoint picker says: the data plane of the inference extension."""

import json

EXT_PROC = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
OVERRIDE_HOST = "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost"
ROUND_ROBIN = "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"
HTTP_OPTIONS = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
MANAGER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
DESTINATION = "x-gateway-destination-endpoint"
# Limit of the body that Envoy buffers; the picker's own limit is 8 MiB.
BUFFER_BYTES = 32 << 20


def address(endpoint):
    host, port = endpoint.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}


def endpoints(name, addresses):
    hosts = [{"endpoint": {"address": address(one)}} for one in addresses]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]}


def listener(name, port, body_mode, response_mode):
    """`body_mode` as in ProcessingMode.BodySendMode."""
    picker = {
        "@type": EXT_PROC,
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
        "message_timeout": "10s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": body_mode,
            "response_body_mode": response_mode,
            "request_trailer_mode": "SEND" if body_mode == "FULL_DUPLEX_STREAMED" else "SKIP",
            "response_trailer_mode": "SEND" if response_mode == "FULL_DUPLEX_STREAMED" else "SKIP",
        },
        "metadata_options": {"receiving_namespaces": {"untyped": ["envoy.lb"]}},
    }
    shown = {"header": {"key": "x-upstream", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
    # No time limit: answers stream.
    route = {"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "0s"}}
    manager = {
        "@type": MANAGER,
        "stat_prefix": name,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route],
                                            "response_headers_to_add": [shown]}]},
        "http_filters": [{"name": "picker", "typed_config": picker},
                         {"name": "router", "typed_config": {"@type": ROUTER}}],
    }  # fmt: skip
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {"name": name, "address": address(f"127.0.0.1:{port}"), "filter_chains": [chain],
            "per_connection_buffer_limit_bytes": BUFFER_BYTES}  # fmt: skip


def config(listeners, picker, pool):
    """`listeners`: {name: (port, body mode, response mode)}."""
    fallback = {"policies": [{"typed_extension_config": {"name": "rr", "typed_config": {"@type": ROUND_ROBIN}}}]}
    override = {
        "@type": OVERRIDE_HOST,
        "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}},
                                  {"header": DESTINATION}],
        "fallback_policy": fallback,
    }  # fmt: skip
    policy = {"policies": [{"typed_extension_config": {"name": "picked", "typed_config": override}}]}
    http2 = {HTTP_OPTIONS.rsplit("/", 1)[1]: {"@type": HTTP_OPTIONS, "explicit_http_config": {"http2_protocol_options": {}}}}
    clusters = [
        {"name": "picker", "type": "STATIC", "load_assignment": endpoints("picker", [picker]),
         "typed_extension_protocol_options": http2},
        {"name": "pool", "type": "STATIC", "load_assignment": endpoints("pool", pool), "load_balancing_policy": policy},
    ]  # fmt: skip
    static = {"listeners": [listener(name, *how) for name, how in listeners.items()], "clusters": clusters}
    return json.dumps({"static_resources": static})
